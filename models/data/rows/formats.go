package rows

import (
	"errors"
	"fmt"
	"strings"
)

// A Sample is a row that is understood: a conversation, or plain text of which the
// answer is learned.
type Sample struct {
	Conversation   // without messages: plain text
	Prompt, Answer string
}

// A format reads rows of one form. Its errors name fields; the caller names the row.
type format struct {
	fields Fields // by default
	read   func(o object, f Fields, chat bool) (Sample, error)
}

// formats are those of rows, by the names that data.format has for them. mixed is
// any of them, as the row's fields tell.
var formats = map[string]format{
	"chat":              {Fields{Messages: "messages", Role: "role", Content: "content", Tools: "tools"}, readChat},
	"sharegpt":          {Fields{Messages: "conversations", Role: "from", Content: "value", Tools: "tools", System: "system"}, readShareGPT},
	"alpaca":            {Fields{Instruction: "instruction", Input: "input", Output: "output", System: "system"}, readAlpaca},
	"prompt_completion": {Fields{Prompt: "prompt", Completion: "completion", Role: "role", Content: "content", Tools: "tools"}, readCompletion},
	"text_rows":         {Fields{Text: "text"}, readTextRow},
}

// Known says that there is a format of that name, mixed among them.
func Known(name string) bool {
	_, ok := formats[name]
	return ok || name == "mixed"
}

// formatOf tells a row's format by its fields.
func formatOf(o object) (string, error) {
	var found []string
	for _, x := range []struct{ format, field string }{
		{"chat", "messages"}, {"sharegpt", "conversations"}, {"alpaca", "instruction"}, {"prompt_completion", "completion"}, {"text_rows", "text"},
	} {
		if o.get(x.field) != nil {
			found = append(found, x.format)
		}
	}
	switch {
	case len(found) == 0:
		return "", fmt.Errorf("no field tells the format: there are %s, and one of messages (chat), conversations (sharegpt), instruction (alpaca), completion (prompt_completion) or text (text_rows) is needed", o.keys())
	case len(found) > 1:
		return "", fmt.Errorf("the fields are those of several formats, %s: give data.format", strings.Join(found, " and "))
	}
	return found[0], nil
}

// Understand reads a row in a format, or in mixed. chat says that there is a
// template to render conversations with.
func Understand(r Row, name string, f Fields, chat bool) (s Sample, err error) {
	o, err := r.object()
	if err != nil {
		return s, err
	}
	if name == "mixed" {
		if name, err = formatOf(o); err != nil {
			return s, r.Errorf("%w", err)
		}
	}
	form := formats[name]
	if s, err = form.read(o, f.or(form.fields), chat); err == nil {
		err = s.check(chat)
	}
	if err != nil {
		return s, r.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// check refuses what no template should have to make sense of.
func (s Sample) check(chat bool) error {
	if len(s.Messages) > 0 && !chat {
		return ErrNoTemplate
	}
	for i, m := range s.Messages {
		mayBeEmpty := m.Role == "system" || m.Role == "tool" || m.More["tool_calls"] != nil
		if m.Content == "" && !mayBeEmpty {
			return fmt.Errorf("message %d, of the %s, is empty", i, m.Role)
		}
	}
	return nil
}

// ErrNoTemplate says that a conversation cannot be written.
var ErrNoTemplate = errors.New("a conversation needs a chat template: give data.template, or a model.path whose tokenizer_config.json has one")
