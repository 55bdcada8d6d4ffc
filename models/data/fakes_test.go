package data

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// fakeTokenizer has a token a byte, but special ones for marks, and one for two
// newlines, which a cut between them parts.
type fakeTokenizer struct {
	bos, eos int32 // -1: none
}

var marks = []string{"<s>", "</s>", "<user>", "<assistant>", "<system>", "<tool>", "<end>", "\n\n"}

const (
	bos, eos, end, newlines = 256, 257, 262, 263
	fakeVocab               = 264
)

func (f fakeTokenizer) Encode(text string) (ids []int32) {
next:
	for text != "" {
		for i, m := range marks {
			if rest, ok := strings.CutPrefix(text, m); ok {
				ids, text = append(ids, int32(256+i)), rest
				continue next
			}
		}
		ids, text = append(ids, int32(text[0])), text[1:]
	}
	return ids
}

func (f fakeTokenizer) VocabSize() int { return fakeVocab }

func (f fakeTokenizer) Around() (before, after []int32) {
	if f.bos >= 0 {
		before = []int32{f.bos}
	}
	if f.eos >= 0 {
		after = []int32{f.eos}
	}
	return before, after
}

// decode is the way back, for people.
func decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		switch {
		case id < 0:
			b.WriteByte('_')
		case id < 256:
			b.WriteByte(byte(id))
		default:
			b.WriteString(marks[id-256])
		}
	}
	return b.String()
}

// fakeTemplate writes <s>, and for each message <role>content<end> and a newline.
type fakeTemplate struct{}

func (fakeTemplate) Render(c Conversation) (string, []Span, error) {
	var b strings.Builder
	var said []Span
	b.WriteString("<s>")
	if c.Tools != nil {
		fmt.Fprintf(&b, "[%s]", c.Tools)
	}
	for i, m := range c.Messages {
		if m.Role == "system" && i > 0 {
			return "", nil, fmt.Errorf("a system message must come first")
		}
		fmt.Fprintf(&b, "<%s>", m.Role)
		from := b.Len()
		b.WriteString(m.Content)
		if calls := m.More["tool_calls"]; calls != nil {
			b.Write(calls)
		}
		b.WriteString("<end>")
		if m.Role == "assistant" {
			said = append(said, Span{from, b.Len()})
		}
		b.WriteByte('\n')
	}
	return b.String(), said, nil
}

// fakeEncoding has both tokens and a template.
var fakeEncoding = Encoding{Tokenizer: fakeTokenizer{bos, eos}, Template: fakeTemplate{}, ID: "fake"}

// samplesOptions are those of rows, each a sequence.
func samplesOptions(t testing.TB, format string, seqLen int, train ...string) Options {
	return Options{Train: train, Format: format, SeqLen: seqLen, Vocab: fakeVocab, Seed: 7, Encoding: fakeEncoding, Cache: t.TempDir()}
}

// lines writes an object a line.
func lines(objects ...any) string {
	var b strings.Builder
	for _, o := range objects {
		line, err := json.Marshal(o)
		if err != nil {
			panic(err)
		}
		b.Write(append(line, '\n'))
	}
	return b.String()
}

// pair is a row of prompt_completion.
func pair(prompt, completion string) any {
	return map[string]string{"prompt": prompt, "completion": completion}
}

// said is a row of chat: role, content, role, content, …
func said(parts ...string) any {
	var list []map[string]string
	for m := range slices.Chunk(parts, 2) {
		list = append(list, map[string]string{"role": m[0], "content": m[1]})
	}
	return map[string]any{"messages": list}
}

func zipped(text string) string {
	var b strings.Builder
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.String()
}

// shown is each sequence as tokens|targets, with _ for what does not count, and
// without the padding.
func shown(t *testing.T, d Dataset) (all []string) {
	t.Helper()
	for _, s := range readAll(t, d) {
		tokens, targets := s[0], s[1]
		n := len(targets)
		for n > 0 && targets[n-1] == Ignore && tokens[n-1] == 0 {
			n--
		}
		all = append(all, decode(tokens[:n])+"|"+decode(targets[:n]))
	}
	return all
}

func wantShown(t *testing.T, d Dataset, want ...string) {
	t.Helper()
	if got := shown(t, d); !slices.Equal(got, want) {
		t.Errorf("the sequences are\n%q\nwant\n%q", got, want)
	}
}

// stepsOf is how many batches so many sequences fill, the last one perhaps in part.
func stepsOf(sequences, batch int) int { return (sequences + batch - 1) / batch }
