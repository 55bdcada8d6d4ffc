package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gorun-dev/gorun/models/chat/jinja"
)

// Open reads the chat template of a Hugging Face folder: chat_template.jinja, with
// those in additional_chat_templates, else the chat_template of
// tokenizer_config.json (a text, or a list of templates with names), else
// chat_template.json. Special tokens come from tokenizer_config.json; in folders of
// the old form, which has no added_tokens_decoder there, special_tokens_map.json
// comes first. A folder without a template gives ErrNoTemplate.
func Open(dir string) (*Template, error) {
	t := &Template{tokens: map[string]jinja.Value{}}
	config, err := readObject(dir, "tokenizer_config.json")
	if err != nil {
		return nil, err
	}
	if err := t.readTokens(dir, config); err != nil {
		return nil, err
	}
	var sources map[string]string
	if sources, t.file, err = findTemplates(dir, config); err != nil {
		return nil, err
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%s: %w: neither chat_template.jinja nor chat_template in tokenizer_config.json", dir, ErrNoTemplate)
	}
	return t, t.parse(sources)
}

// readObject reads a JSON object from a file that may be missing: then it is empty.
func readObject(dir, file string) (map[string]json.RawMessage, error) {
	path := filepath.Join(dir, file)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return object, nil
}

// findTemplates gives the sources of the folder's templates by name, and the file
// that the first came from.
func findTemplates(dir string, config map[string]json.RawMessage) (map[string]string, string, error) {
	path := filepath.Join(dir, "chat_template.jinja")
	sources := map[string]string{}
	files, err := filepath.Glob(filepath.Join(escapeGlob(dir), "additional_chat_templates", "*.jinja"))
	if err != nil {
		return nil, "", err
	}
	for _, file := range append(files, path) {
		text, err := os.ReadFile(file)
		if file == path && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, "", err
		}
		name := strings.TrimSuffix(filepath.Base(file), ".jinja")
		if file == path {
			name = defaultName
		}
		sources[name] = string(text)
	}
	if len(sources) > 0 {
		return sources, path, nil
	}
	path = filepath.Join(dir, "tokenizer_config.json")
	if sources, err = templatesOf(config); err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	if len(sources) > 0 {
		return sources, path, nil
	}
	path = filepath.Join(dir, "chat_template.json")
	other, err := readObject(dir, "chat_template.json")
	if err != nil {
		return nil, "", err
	}
	if sources, err = templatesOf(other); err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	return sources, path, nil
}

// escapeGlob takes their meaning from the characters of a path that have one in
// patterns.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// templatesOf reads the key chat_template: a text, a list of named ones, or null.
func templatesOf(config map[string]json.RawMessage) (map[string]string, error) {
	raw, ok := config["chat_template"]
	if !ok || string(raw) == "null" {
		return nil, nil
	}
	var source string
	if json.Unmarshal(raw, &source) == nil {
		return map[string]string{defaultName: source}, nil
	}
	var list []struct {
		Name     string
		Template *string
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("chat_template is neither a text nor a list of templates with names: %w", err)
	}
	sources := map[string]string{}
	for i, entry := range list {
		if entry.Name == "" || entry.Template == nil {
			return nil, fmt.Errorf("chat_template: entry %d lacks its name or its template", i)
		}
		sources[entry.Name] = *entry.Template
	}
	return sources, nil
}

// tokenNames are the special tokens that templates see where they are set.
var tokenNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

func (t *Template) readTokens(dir string, config map[string]json.RawMessage) error {
	if _, current := config["added_tokens_decoder"]; !current {
		old, err := readObject(dir, "special_tokens_map.json")
		if err != nil {
			return err
		}
		if err := t.addTokens(old); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(dir, "special_tokens_map.json"), err)
		}
	}
	if err := t.addTokens(config); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, "tokenizer_config.json"), err)
	}
	return nil
}

// addTokens takes special tokens that are not known yet.
func (t *Template) addTokens(from map[string]json.RawMessage) error {
	for _, name := range tokenNames {
		if err := t.addToken(name, from[name]); err != nil {
			return err
		}
	}
	var named map[string]json.RawMessage // a list in some folders: without names
	if json.Unmarshal(from["extra_special_tokens"], &named) == nil {
		for name, raw := range named {
			if err := t.addToken(name, raw); err != nil {
				return err
			}
		}
	}
	const additional = "additional_special_tokens"
	if _, known := t.tokens[additional]; known || from[additional] == nil {
		return nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(from[additional], &list); err != nil {
		return fmt.Errorf("%s: %w", additional, err)
	}
	var tokens jinja.List
	for _, raw := range list {
		token, err := tokenText(raw)
		if err != nil {
			return fmt.Errorf("%s: %w", additional, err)
		}
		tokens = append(tokens, token)
	}
	if len(tokens) > 0 {
		t.tokens[additional] = tokens
	}
	return nil
}

func (t *Template) addToken(name string, raw json.RawMessage) error {
	if _, known := t.tokens[name]; known || raw == nil || string(raw) == "null" {
		return nil
	}
	token, err := tokenText(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if token != "" {
		t.tokens[name] = token
	}
	return nil
}

// tokenText is a token that is written as a text or as an object with a content.
func tokenText(raw json.RawMessage) (string, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var object struct{ Content *string }
	if err := json.Unmarshal(raw, &object); err != nil || object.Content == nil {
		return "", fmt.Errorf("a token is a text or an object with a content, not %.60s", raw)
	}
	return *object.Content, nil
}
