package tokenizer

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// benchTexts are what speed is measured on: plays in English; sentences in many
// scripts, with numbers, marks and emoji between them; and words of random letters,
// of which the cache has none.
func benchTexts(b *testing.B) map[string]string {
	english, err := os.ReadFile(testenv.Data(b, "text/tinyshakespeare.txt"))
	if err != nil {
		b.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	unseen := make([]byte, 1<<20)
	for i := range unseen {
		unseen[i] = "etaoinshrdlu     "[random.IntN(17)]
	}
	return map[string]string{"english": string(english), "mixed": mixedText(1 << 20), "unseen": string(unseen)}
}

// perCore reports the speed in CPU time, of all threads and of the garbage collector,
// which other programs on the machine disturb less than the time on the clock.
func perCore(b *testing.B, bytes int, f func()) {
	used := func() float64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
	}
	b.SetBytes(int64(bytes))
	f() // not counted: it fills the caches, as the first pages of a long text do
	before := used()
	for b.Loop() {
		f()
	}
	b.ReportMetric(float64(bytes)*float64(b.N)/1e6/(used()-before), "MB/s-core")
}

// BenchmarkEncode is the speed of one core.
func BenchmarkEncode(b *testing.B) {
	texts := benchTexts(b)
	for _, name := range []string{"qwen2.5", "gpt2", "llama3", "stories260K"} {
		for _, text := range []string{"english", "mixed", "unseen"} {
			b.Run(name+"/"+text, func(b *testing.B) {
				tok := realTokenizer(b, name)
				perCore(b, len(texts[text]), func() { tok.Encode(texts[text]) })
			})
		}
	}
}

// BenchmarkEncodeParallel is the speed of several workers together.
func BenchmarkEncodeParallel(b *testing.B) {
	text := strings.Repeat(benchTexts(b)["english"], 4)
	tok := realTokenizer(b, "qwen2.5")
	for _, workers := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) {
			perCore(b, len(text), func() { tok.EncodeParallel(text, workers) })
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	text := benchTexts(b)["mixed"]
	tok := realTokenizer(b, "qwen2.5")
	ids := tok.Encode(text)
	perCore(b, len(text), func() { tok.Decode(ids) })
}

func BenchmarkOpen(b *testing.B) {
	dir := realFolder(b, "qwen2.5")
	for b.Loop() {
		if _, err := Open(dir); err != nil {
			b.Fatal(err)
		}
	}
}
