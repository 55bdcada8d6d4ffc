package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// file is tokenizer.json. Truncation and padding are those of the batch that its
// writer encoded last; whoever encodes sets them anew, so they are not used.
type file struct {
	Version       string
	Truncation    any
	Padding       any
	Added         []fileToken     `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

// fileToken is an added token, in tokenizer.json or tokenizer_config.json.
type fileToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized *bool  `json:"normalized"` // absent: what is not special
	Special    bool   `json:"special"`
	Type       string `json:"__type"` // in tokenizer_config.json, "AddedToken"
}

func (f fileToken) token(id int32) addedToken {
	normalized := !f.Special
	if f.Normalized != nil {
		normalized = *f.Normalized
	}
	return addedToken{id, f.Content, f.SingleWord, f.LStrip, f.RStrip, normalized, f.Special}
}

// model is the section of that name.
type model struct {
	Type         string
	Dropout      float64
	UnkToken     *string `json:"unk_token"` // see findBytes
	FuseUnk      any     `json:"fuse_unk"`
	Prefix       string  `json:"continuing_subword_prefix"`
	Suffix       string  `json:"end_of_word_suffix"`
	ByteFallback bool    `json:"byte_fallback"`
	IgnoreMerges bool    `json:"ignore_merges"`
	Vocab        map[string]int32
	Merges       []pieces
}

// pieces is a merge, written as "a b" or as ["a", "b"].
type pieces [2]string

func (p *pieces) UnmarshalJSON(text []byte) error {
	if text[0] == '[' {
		var list []string
		if err := json.Unmarshal(text, &list); err != nil || len(list) != 2 {
			return fmt.Errorf("merge %s is not a pair", text)
		}
		*p = pieces(list)
		return nil
	}
	var joined string
	if err := json.Unmarshal(text, &joined); err != nil {
		return fmt.Errorf("merge %s is not a pair", text)
	}
	return p.parse(joined)
}

func (p *pieces) parse(joined string) error {
	left, right, ok := strings.Cut(joined, " ")
	if !ok || strings.Contains(right, " ") {
		return fmt.Errorf("merge %q is not a pair", joined)
	}
	*p = pieces{left, right}
	return nil
}

// strict decodes a section; a key that the target lacks is an error, for it would
// be an option that is not obeyed.
func strict(section string, text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", section, err)
	}
	return nil
}

// steps gives the steps of a section: those of its sequence, of any depth, or the
// one that it is. In a sequence they stand under the key list.
func steps(section, list string, text json.RawMessage) ([]step, error) {
	if isNull(text) {
		return nil, nil
	}
	var s step
	if err := json.Unmarshal(text, &s); err != nil || s.Type == "" {
		return nil, fmt.Errorf("%s: %s is no object with a type", section, text)
	}
	if s.Type != "Sequence" {
		s.section, s.text = section, text
		return []step{s}, nil
	}
	var sequence map[string]json.RawMessage
	var parts []json.RawMessage
	if err := json.Unmarshal(text, &sequence); err != nil {
		return nil, fmt.Errorf("%s: %w", section, err)
	}
	for key := range sequence {
		if key != "type" && key != list {
			return nil, fmt.Errorf("%s: a Sequence has the unknown key %q", section, key)
		}
	}
	if err := json.Unmarshal(sequence[list], &parts); err != nil {
		return nil, fmt.Errorf("%s: the Sequence's %s: %w", section, list, err)
	}
	var all []step
	for _, p := range parts {
		more, err := steps(section, list, p)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

// step is one of a section.
type step struct {
	Type    string
	section string
	text    json.RawMessage
}

// read decodes the step's options into an object that embeds kind.
func (s step) read(into any) error { return strict(s.section+" "+s.Type, s.text, into) }

func (s step) refuse(why string) error {
	return fmt.Errorf("%s: %s %s", s.section, s.text, why)
}

// is says that the step is the given one, key for key.
func (s step) is(want string) bool {
	var got, w any
	if json.Unmarshal(s.text, &got) != nil {
		return false
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		panic("tokenizer: " + err.Error())
	}
	return reflect.DeepEqual(got, w)
}

func isNull(text json.RawMessage) bool {
	return len(text) == 0 || string(text) == "null"
}

// spec reads what the file says, and refuses what would be encoded in another way.
func (f *file) spec() (*spec, error) {
	s := &spec{}
	if err := s.readModel(f.Model); err != nil {
		return nil, err
	}
	for _, read := range []func(*file) error{s.readNormalizer, s.readPreTokenizer, s.readPostProcessor, s.readDecoder} {
		if err := read(f); err != nil {
			return nil, err
		}
	}
	for _, a := range f.Added {
		s.added = append(s.added, a.token(a.ID))
	}
	return s, nil
}

func (s *spec) readModel(text json.RawMessage) error {
	if isNull(text) {
		return errors.New("there is no model")
	}
	var kind struct{ Type string }
	if err := json.Unmarshal(text, &kind); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	// Files from before models had a type are of this one.
	if kind.Type != "BPE" && kind.Type != "" {
		return fmt.Errorf("the model is of type %q, want BPE", kind.Type)
	}
	var m model
	if err := strict("model", text, &m); err != nil {
		return err
	}
	switch {
	case m.Dropout != 0:
		return fmt.Errorf("the model has a dropout of %v, by which no text has ids of its own", m.Dropout)
	case m.Prefix != "" || m.Suffix != "":
		return fmt.Errorf("the model marks subwords by the prefix %q or suffix %q, which is not supported", m.Prefix, m.Suffix)
	case len(m.Vocab) == 0:
		return errors.New("the model has no vocabulary")
	}
	s.byteLevel, s.ignoreMerges, s.unknown = !m.ByteFallback, m.IgnoreMerges, m.UnkToken != nil
	s.vocab, s.merges = m.Vocab, m.Merges
	return nil
}
