package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The tokenizer that the files describe is Bytes.
func TestBytesFiles(t *testing.T) {
	files, err := BytesFiles()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "a", "ein Text, 文字\r\n\t und \x01\x7f", "Ā  ĠĊ", "it's 12345"} {
		want := Bytes{}.Encode(text)
		if got := tok.Encode(text); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
		if got := tok.Decode(want); got != text {
			t.Errorf("%q comes back as %q", text, got)
		}
	}
	if got, want := tok.Encode("a"+EndOfText+"b"), []int32{'a', 0, 'b'}; !slices.Equal(got, want) {
		t.Errorf("the end of a text: %v, want %v", got, want)
	}
	for name, of := range map[string]func() (int32, bool){"BOS": tok.BOS, "EOS": tok.EOS} {
		if id, ok := of(); id != 0 || !ok {
			t.Errorf("%s is %d, %t", name, id, ok)
		}
	}
	if n := tok.VocabSize(); n != 256 {
		t.Errorf("%d ids", n)
	}
}

// A zero byte, which the files cannot write, is left out, as by Hugging Face's
// tokenizers.
func TestZeroByteIsLeftOut(t *testing.T) {
	files, err := BytesFiles()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := tok.Encode("a\x00b\x00"), []int32{'a', 'b'}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
