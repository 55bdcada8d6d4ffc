package tokenizer

import (
	"errors"
	"fmt"
	"slices"
)

func (s *spec) readNormalizer(f *file) error {
	all, err := steps("normalizer", "normalizers", f.Normalizer)
	if err != nil {
		return err
	}
	var types []string
	for _, step := range all {
		types = append(types, step.Type)
		switch step.Type {
		case "NFC":
			s.form.nfc = true
			if !step.is(`{"type": "NFC"}`) {
				return step.refuse("has unknown options")
			}
		case "Prepend":
			if !step.is(`{"type": "Prepend", "prepend": "\u2581"}`) {
				return step.refuse("is not supported, only U+2581 can be prepended")
			}
		case "Replace":
			if !step.is(`{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}`) {
				return step.refuse("is not supported, only spaces can be replaced by U+2581")
			}
		default:
			return step.refuse("is of an unknown type")
		}
	}
	rest := slices.DeleteFunc(types, func(t string) bool { return t == "NFC" })
	switch {
	case slices.Equal(rest, []string{"Prepend", "Replace"}):
		s.form.prepend, s.form.replace = true, true
	case slices.Equal(rest, []string{"Replace"}):
		s.form.replace = true
	case len(rest) > 0:
		return fmt.Errorf("normalizer: %v in this order is not supported", rest)
	}
	if s.byteLevel && len(rest) > 0 {
		return fmt.Errorf("normalizer: spaces become U+2581, but the model has no byte_fallback")
	}
	return nil
}

// byteLevelOptions are those of the ByteLevel pre-tokeniser, post-processor and
// decoder. Offsets are not computed here, so trim_offsets changes nothing.
type byteLevelOptions struct {
	Type        string `json:"type"`
	PrefixSpace *bool  `json:"add_prefix_space"`
	TrimOffsets *bool  `json:"trim_offsets"`
	UseRegex    *bool  `json:"use_regex"`
}

func (s *spec) readPreTokenizer(f *file) error {
	all, err := steps("pre_tokenizer", "pretokenizers", f.PreTokenizer)
	if err != nil {
		return err
	}
	if s.byteLevel && (len(all) == 0 || all[len(all)-1].Type != "ByteLevel") {
		return errors.New("the model has neither byte_fallback nor a ByteLevel pre_tokenizer: text outside the vocabulary would be lost")
	}
	for i, step := range all {
		switch step.Type {
		case "Split":
			err = s.readSplit(step)
		case "ByteLevel":
			err = s.readByteLevel(step)
		case "Metaspace":
			err = s.readMetaspace(step)
		default:
			return step.refuse("is of an unknown type")
		}
		if err != nil {
			return err
		}
		if i > 0 && (i > 1 || all[0].Type != "Split" || step.Type != "ByteLevel") {
			return step.refuse("is not supported behind " + string(all[i-1].text))
		}
	}
	return nil
}

func (s *spec) readSplit(step step) error {
	var o struct {
		Type     string
		Pattern  struct{ Regex, String *string }
		Behavior string
		Invert   bool
	}
	if err := step.read(&o); err != nil {
		return err
	}
	if !s.byteLevel {
		return step.refuse("is not supported where the model has byte_fallback")
	}
	if o.Pattern.Regex == nil || o.Behavior != "Isolated" || o.Invert {
		return step.refuse("is not supported: want a Regex, Isolated and not inverted")
	}
	if s.form.scan = patternScanner(*o.Pattern.Regex); s.form.scan == nil {
		return fmt.Errorf("pre_tokenizer: the pattern %s is none of those known, of GPT-2, Llama 3 and Qwen2", *o.Pattern.Regex)
	}
	return nil
}

func (s *spec) readByteLevel(step step) error {
	var o byteLevelOptions
	if err := step.read(&o); err != nil {
		return err
	}
	if !s.byteLevel {
		return step.refuse("stands beside a model with byte_fallback")
	}
	prefix := o.PrefixSpace == nil || *o.PrefixSpace
	regex := o.UseRegex == nil || *o.UseRegex
	if s.form.scan != nil && (prefix || regex) {
		return step.refuse("behind a Split: want add_prefix_space and use_regex false")
	}
	if prefix {
		s.form.prefix = prefixEach
	}
	if regex {
		s.form.scan = patternScanner(gpt2Pattern)
	}
	return nil
}

func (s *spec) readMetaspace(step step) error {
	var o struct {
		Type        string
		Replacement string
		Scheme      *string `json:"prepend_scheme"`
		Split       *bool
		PrefixSpace *bool `json:"add_prefix_space"` // before there were schemes
	}
	if err := step.read(&o); err != nil {
		return err
	}
	if s.byteLevel || o.Replacement != spaceMark {
		return step.refuse("is supported with U+2581 and byte_fallback only")
	}
	scheme := "always"
	if o.Scheme != nil {
		scheme = *o.Scheme
	} else if o.PrefixSpace != nil && !*o.PrefixSpace {
		scheme = "never"
	}
	prefixes := map[string]prefix{"always": prefixEach, "first": prefixFirst, "never": noPrefix}
	p, ok := prefixes[scheme]
	if !ok || o.PrefixSpace != nil && *o.PrefixSpace != (p != noPrefix) {
		return step.refuse("has an unknown or contradicting prepend_scheme")
	}
	s.form.marked, s.form.prefix = true, p
	if o.Split == nil || *o.Split {
		s.form.scan = markedWord
	}
	return nil
}

// templateItem is an item of a template: a special token, or the text.
type templateItem struct {
	SpecialToken, Sequence *struct {
		ID     string
		TypeID int `json:"type_id"` // of pairs of texts, which are not encoded here
	}
}

func (s *spec) readPostProcessor(f *file) error {
	all, err := steps("post_processor", "processors", f.PostProcessor)
	if err != nil {
		return err
	}
	templates := 0
	for _, step := range all {
		switch step.Type {
		case "ByteLevel": // for offsets alone
			if err := step.read(&byteLevelOptions{}); err != nil {
				return err
			}
		case "TemplateProcessing":
			if templates++; templates > 1 {
				return step.refuse("is the second of its type")
			}
			if err := s.readTemplate(step); err != nil {
				return err
			}
		default:
			return step.refuse("is of an unknown type")
		}
	}
	return nil
}

func (s *spec) readTemplate(step step) error {
	var o struct {
		Type    string
		Single  []templateItem
		Pair    []templateItem
		Special map[string]struct {
			ID     string
			IDs    []int32
			Tokens []string
		} `json:"special_tokens"`
	}
	if err := step.read(&o); err != nil {
		return err
	}
	texts := 0
	for _, item := range o.Single {
		switch {
		case item.Sequence != nil && item.SpecialToken == nil && item.Sequence.ID == "A":
			texts++
		case item.SpecialToken != nil && item.Sequence == nil:
			tokens := o.Special[item.SpecialToken.ID].Tokens
			if len(tokens) == 0 {
				return step.refuse("does not say what the token " + item.SpecialToken.ID + " is")
			}
			if texts == 0 {
				s.before = append(s.before, tokens...)
			} else {
				s.after = append(s.after, tokens...)
			}
		default:
			return step.refuse("has an item that is neither a special token nor the text A")
		}
	}
	if texts != 1 {
		return step.refuse(fmt.Sprintf("has the text %d times for a single text, want it once", texts))
	}
	return nil
}

// The steps of a decoder over characters. The last is there where the tokenizer
// puts a space before a text.
var charDecoder = []string{
	`{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}`,
	`{"type": "ByteFallback"}`,
	`{"type": "Fuse"}`,
	`{"type": "Strip", "content": " ", "start": 1, "stop": 0}`,
}

func (s *spec) readDecoder(f *file) error {
	all, err := steps("decoder", "decoders", f.Decoder)
	if err != nil {
		return err
	}
	if s.byteLevel {
		if len(all) != 1 || all[0].Type != "ByteLevel" {
			return fmt.Errorf("decoder: %s, want ByteLevel, as the pre_tokenizer is", f.Decoder)
		}
		return all[0].read(&byteLevelOptions{})
	}
	for i, step := range all {
		if i == len(charDecoder) || !step.is(charDecoder[i]) {
			return step.refuse(fmt.Sprintf("is not supported as step %d, want %v", i+1, charDecoder))
		}
	}
	if len(all) < len(charDecoder)-1 {
		return fmt.Errorf("decoder: %d steps, want %v", len(all), charDecoder)
	}
	s.stripSpace = len(all) == len(charDecoder)
	return nil
}
