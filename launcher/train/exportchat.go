package train

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models/data"
)

// The files of a model's folder that say how it converses.
const (
	templateFile   = "chat_template.jinja"
	generationFile = "generation_config.json"
)

// chatFiles are what a model that was trained on conversations needs beside the files
// of its source ("" for none): the template that they were written by, where data.template
// gave it, and the token that ends an answer among those that end a text, without which
// programs let the model go on and talk to itself.
func chatFiles(cfg *config.Config, source string) (map[string][]byte, error) {
	files := map[string][]byte{}
	if !cfg.Data.Rows() {
		return files, nil
	}
	l, err := openLanguage(cfg)
	if err != nil {
		return nil, err
	}
	t, ok := l.encoding.Template.(*template)
	if !ok {
		return files, nil
	}
	if path := cfg.Data.Template; path != "" {
		if files[templateFile], err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("data.template: %w", err)
		}
	}
	end, ok, err := t.end()
	if err != nil || !ok {
		return files, err
	}
	text, err := endingWith(source, end)
	if text != nil {
		files[generationFile] = text
	}
	return files, err
}

// end is the special token that ends the assistant's turn, if there is one.
func (t *template) end() (id int32, ok bool, err error) {
	if t.tokens == nil {
		return 0, false, nil
	}
	text, said, err := t.Render(data.Conversation{Messages: []data.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "b"}}})
	if err != nil || len(said) == 0 {
		return 0, false, err
	}
	last := said[len(said)-1]
	ids := t.tokens.Encode(text[last.From:last.To])
	if len(ids) == 0 {
		return 0, false, nil
	}
	id = ids[len(ids)-1]
	return id, t.tokens.Special(id), nil
}

// endingWith is source's generation_config.json with end among the tokens that end a
// text; nil where it is already.
func endingWith(source string, end int32) ([]byte, error) {
	settings := map[string]any{}
	if source != "" {
		text, err := os.ReadFile(filepath.Join(source, generationFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err == nil {
			d := json.NewDecoder(bytes.NewReader(text))
			d.UseNumber() // so that 2.0 stays 2.0
			if err := d.Decode(&settings); err != nil {
				return nil, fmt.Errorf("%s: %w", filepath.Join(source, generationFile), err)
			}
		}
	}
	var ends []any
	switch said := settings["eos_token_id"].(type) {
	case nil:
	case []any:
		ends = said
	default:
		ends = []any{said}
	}
	if slices.Contains(ends, any(json.Number(strconv.Itoa(int(end))))) {
		return nil, nil
	}
	settings["eos_token_id"] = append([]any{end}, ends...)
	text, err := json.MarshalIndent(settings, "", "  ")
	return append(text, '\n'), err
}
