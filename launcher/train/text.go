package train

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models/chat"
	"github.com/gorun-dev/gorun/models/chat/jinja"
	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/models/tokenizer"
)

// language is how the job reads and writes text.
type language struct {
	tokenizer.Tokenizer
	// encoding makes samples. Its tokenizer is nil for data that holds none.
	encoding data.Encoding
}

// openLanguage opens the tokenizer and the chat template that the data needs.
func openLanguage(cfg *config.Config) (*language, error) {
	d := cfg.Data
	l := &language{Tokenizer: tokenizer.Bytes{}}
	if !d.Samples(cfg.Model) {
		return l, nil
	}
	dir, key := d.Tokenizer, "data.tokenizer"
	if dir == "" {
		dir, key = cfg.Model.Path, "model.path"
	}
	if dir == "bytes" || dir == "" {
		l.encoding.Tokenizer, dir = byteTexts{}, ""
	} else {
		t, err := tokenizer.Open(dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w (data.tokenizer: bytes makes a token of each byte)", key, err)
		}
		l.Tokenizer, l.encoding.Tokenizer = t, texts{t}
	}
	if err := l.openTemplate(d, dir); err != nil {
		return nil, err
	}
	id, err := identify(dir, d.Template)
	l.encoding.ID = id
	return l, err
}

// openTemplate opens the template that data.template names: a file, none, or that of
// the tokenizer's folder.
func (l *language) openTemplate(d config.Data, dir string) error {
	if !d.Rows() || d.Template == "none" || d.Template == "" && dir == "" {
		return nil
	}
	t := &template{}
	t.tokens, _ = l.Tokenizer.(*tokenizer.BPE)
	var err error
	if d.Template == "" {
		t.chat, err = chat.Open(dir)
		if errors.Is(err, chat.ErrNoTemplate) {
			return nil // what cannot be read without one says so
		}
	} else {
		var source []byte
		if source, err = os.ReadFile(d.Template); err == nil {
			t.chat, err = chat.New(string(source), l.names())
		}
		if err != nil {
			err = fmt.Errorf("data.template: %w", err)
		}
	}
	if err == nil {
		l.encoding.Template = t
	}
	return err
}

// names are the special tokens that a template may write.
func (l *language) names() map[string]string {
	t, ok := l.Tokenizer.(*tokenizer.BPE)
	if !ok {
		zero := string(rune(data.Separator))
		return map[string]string{"bos_token": zero, "eos_token": zero}
	}
	names := map[string]string{}
	for name, find := range map[string]func() (int32, bool){"bos_token": t.BOS, "eos_token": t.EOS} {
		if id, ok := find(); ok {
			names[name], _ = t.Token(id)
		}
	}
	return names
}

// identify is a hash of the files that tokens follow from, of the tokenizer's folder
// and of the template.
func identify(dir, template string) (string, error) {
	h := sha256.New()
	paths := []string{template}
	if dir != "" {
		for _, name := range []string{
			"tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json",
			"chat_template.jinja", "chat_template.json",
		} {
			paths = append(paths, filepath.Join(dir, name))
		}
		more, err := os.ReadDir(filepath.Join(dir, "additional_chat_templates"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		for _, e := range more {
			paths = append(paths, filepath.Join(dir, "additional_chat_templates", e.Name()))
		}
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil && path != "" && path != "none" && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		fmt.Fprintf(h, "%q %t %q\n", filepath.Base(path), err == nil, text)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// texts makes tokens as a folder's tokenizer does.
type texts struct{ *tokenizer.BPE }

// Around is what the folder says stands around a text, and the token that ends it in
// any case: a model learns from it where to stop.
func (t texts) Around() (before, after []int32) {
	before, after = t.Template()
	if end, ok := t.EOS(); ok && !slices.Contains(after, end) {
		after = append(slices.Clone(after), end)
	}
	return before, after
}

// byteTexts makes a token of each byte.
type byteTexts struct{ tokenizer.Bytes }

// Around is the zero byte, which stands between texts.
func (byteTexts) Around() (before, after []int32) {
	return []int32{data.Separator}, []int32{data.Separator}
}

// template writes conversations by a chat template.
type template struct {
	chat   *chat.Template
	tokens *tokenizer.BPE // nil: bytes, of which none is special
}

// today is the date of templates that write one: the same tokens tomorrow as today,
// and on every host.
var today = time.Date(2024, time.July, 26, 0, 0, 0, 0, time.UTC)

func (t *template) Render(c data.Conversation) (string, []data.Span, error) {
	conversation, err := spoken(c)
	if err != nil {
		return "", nil, err
	}
	o := chat.Options{Now: func() time.Time { return today }}
	r, err := t.chat.RenderParts(conversation, o)
	if err != nil {
		return "", nil, err
	}
	marked, err := t.chat.MarksGeneration(conversation, o)
	if err != nil {
		return "", nil, err
	}
	var said []data.Span
	for _, x := range r.Assistant {
		span := data.Span{From: x.Start, To: x.End}
		if !marked { // else the template has said itself what the assistant writes
			span.To = span.From + t.turn(r.Text[span.From:span.To])
		}
		said = append(said, span)
	}
	return r.Text, said, nil
}

// turn is the length of text without the white space behind the token that ends the
// assistant's turn: nobody writes that.
func (t *template) turn(text string) int {
	end := strings.TrimRight(text, " \t\r\n")
	if t.tokens == nil || end == text || end == "" {
		return len(text)
	}
	const longest = 64 // bytes of a special token
	ids := t.tokens.Encode(end[max(0, len(end)-longest):])
	if len(ids) == 0 || !t.tokens.Special(ids[len(ids)-1]) {
		return len(text)
	}
	return len(end)
}

// spoken is c as templates read it.
func spoken(c data.Conversation) (chat.Conversation, error) {
	var messages jinja.List
	for _, m := range c.Messages {
		d := new(jinja.Dict)
		d.Set("role", m.Role)
		d.Set("content", m.Content)
		if m.NoContent {
			d.Set("content", nil)
		}
		for _, name := range slices.Sorted(maps.Keys(m.More)) {
			v, err := jinja.ParseJSON(m.More[name])
			if err != nil {
				return chat.Conversation{}, fmt.Errorf("the field %s: %w", name, err)
			}
			d.Set(name, v)
		}
		messages = append(messages, d)
	}
	var tools jinja.Value
	if c.Tools != nil {
		v, err := jinja.ParseJSON(c.Tools)
		if err != nil {
			return chat.Conversation{}, fmt.Errorf("the tools: %w", err)
		}
		tools = v
	}
	return chat.NewConversation(messages, tools)
}
