package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Conversation is what a chat template renders.
type Conversation struct {
	Messages []Message
	Tools    json.RawMessage // a list of descriptions, or nil
}

// A Message is what one side says.
type Message struct {
	Role    string // system, developer, user, assistant or tool
	Content string
	// NoContent says that the row gives none, as beside calls of tools.
	NoContent bool
	// More is the row's other fields of the message, such as tool_calls.
	More map[string]json.RawMessage
	// Mute says of an assistant's message that it is read and not learned.
	Mute bool
}

// A sample is a row that is understood: a conversation, or plain text of which the
// answer is learned.
type sample struct {
	Conversation   // without messages: plain text
	prompt, answer string
}

// A format reads rows of one form. Its errors name fields; the caller names the row.
type format struct {
	fields Fields // by default
	read   func(o object, f Fields, chat bool) (sample, error)
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

// understand reads a row in a format, or in mixed. chat says that there is a
// template to render conversations with.
func understand(r record, name string, f Fields, chat bool) (s sample, err error) {
	o, err := r.object()
	if err != nil {
		return s, err
	}
	if name == "mixed" {
		if name, err = formatOf(o); err != nil {
			return s, r.errorf("%w", err)
		}
	}
	form := formats[name]
	if s, err = form.read(o, f.or(form.fields), chat); err == nil {
		err = s.check(chat)
	}
	if err != nil {
		return s, r.errorf("%s: %w", name, err)
	}
	return s, nil
}

// check refuses what no template should have to make sense of.
func (s sample) check(chat bool) error {
	if len(s.Messages) > 0 && !chat {
		return errNoTemplate
	}
	for i, m := range s.Messages {
		mayBeEmpty := m.Role == "system" || m.Role == "tool" || m.More["tool_calls"] != nil
		if m.Content == "" && !mayBeEmpty {
			return fmt.Errorf("message %d, of the %s, is empty", i, m.Role)
		}
	}
	return nil
}

var errNoTemplate = errors.New("a conversation needs a chat template: give data.template, or a model.path whose tokenizer_config.json has one")

// readChat reads {"messages": [{"role": …, "content": …}, …], "tools": […]}.
func readChat(o object, f Fields, _ bool) (sample, error) {
	messages, err := readMessages(o, f.Messages, f)
	if err != nil {
		return sample{}, err
	}
	return sample{Conversation: Conversation{Messages: messages}}.complete(o, f)
}

func readMessages(o object, field string, f Fields) ([]Message, error) {
	list, err := o.list(field)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%s is empty", field)
	}
	if err != nil {
		return nil, err
	}
	var messages []Message
	for i, m := range list {
		message, err := readMessage(m, f)
		if err != nil {
			return nil, fmt.Errorf("%s.%d: %w", field, i, err)
		}
		messages = append(messages, message)
	}
	return messages, nil
}

// complete adds the tools.
func (s sample) complete(o object, f Fields) (sample, error) {
	var err error
	s.Tools, err = readTools(o.get(f.Tools))
	if err != nil {
		err = fmt.Errorf("the field %s: %w", f.Tools, err)
	}
	return s, err
}

var roles = []string{"system", "developer", "user", "assistant", "tool"}

func readMessage(o object, f Fields) (m Message, err error) {
	if m.Role, err = o.text(f.Role); err != nil {
		return m, err
	}
	if !slices.Contains(roles, m.Role) {
		return m, fmt.Errorf("the %s %q is none of %s", f.Role, m.Role, strings.Join(roles, ", "))
	}
	m.More = map[string]json.RawMessage{}
	for name, v := range o {
		if name != f.Role && name != f.Content && name != "weight" && present(v) != nil {
			m.More[name] = v
		}
	}
	there := false
	if m.Content, there, err = o.maybeText(f.Content); err != nil {
		return m, err
	}
	if m.NoContent = !there; !there && m.More["tool_calls"] == nil {
		return m, fmt.Errorf("the field %s is missing; there are: %s", f.Content, o.keys())
	}
	if weight := o.get("weight"); weight != nil {
		switch string(weight) {
		case "0":
			m.Mute = true
		case "1":
		default:
			return m, fmt.Errorf("the weight is %s; it must be 0 (read, not learned) or 1", weight)
		}
	}
	return m, nil
}

// readTools reads a list of tools, which ShareGPT writes as text that holds one.
func readTools(v json.RawMessage) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	if v[0] == '"' {
		var s string
		if err := json.Unmarshal(v, &s); err != nil {
			return nil, err
		}
		if v = json.RawMessage(strings.TrimSpace(s)); len(v) == 0 {
			return nil, nil
		}
	}
	var list []json.RawMessage
	if err := json.Unmarshal(v, &list); err != nil {
		return nil, fmt.Errorf("must be a list of tools, and is %s", kind(v))
	}
	if len(list) == 0 {
		return nil, nil
	}
	return v, nil
}

// aliases are ShareGPT's names of the sides.
var aliases = map[string]string{
	"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "model": "assistant",
	"system": "system", "tool": "tool", "observation": "tool", "function_response": "tool", "function_call": "assistant",
}

// readShareGPT reads {"conversations": [{"from": "human", "value": …}, …], "system":
// …, "tools": …}. A function_call's value is a call, or a list of calls, as JSON.
func readShareGPT(o object, f Fields, _ bool) (s sample, err error) {
	list, err := o.list(f.Messages)
	if err != nil {
		return s, err
	}
	if len(list) == 0 {
		return s, fmt.Errorf("%s is empty", f.Messages)
	}
	if s, err = s.withSystem(o, f); err != nil {
		return s, err
	}
	for i, said := range list {
		m, err := readTurn(said, f)
		if err != nil {
			return s, fmt.Errorf("%s.%d: %w", f.Messages, i, err)
		}
		s.Messages = append(s.Messages, m)
	}
	return s.complete(o, f)
}

func readTurn(o object, f Fields) (m Message, err error) {
	from, err := o.text(f.Role)
	if err != nil {
		return m, err
	}
	known := false
	if m.Role, known = aliases[from]; !known {
		return m, fmt.Errorf("the %s %q is none of human, gpt, system, function_call, observation, tool, user, assistant", f.Role, from)
	}
	if m.Content, err = o.text(f.Content); err != nil || from != "function_call" {
		return m, err
	}
	calls, err := readCalls(m.Content)
	if err != nil {
		return m, fmt.Errorf("the %s of a function_call: %w", f.Content, err)
	}
	m.Content, m.More = "", map[string]json.RawMessage{"tool_calls": calls}
	return m, nil
}

// readCalls turns a call, or a list of them, into what templates know as tool_calls.
func readCalls(text string) (json.RawMessage, error) {
	type call struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	var calls []call
	raw := []byte(strings.TrimSpace(text))
	if len(raw) > 0 && raw[0] == '{' {
		raw = slices.Concat([]byte("["), raw, []byte("]"))
	}
	if err := json.Unmarshal(raw, &calls); err != nil {
		return nil, fmt.Errorf("must be {\"name\": …, \"arguments\": …}: %w", err)
	}
	if len(calls) == 0 {
		return nil, errors.New("holds no call")
	}
	type toolCall struct {
		Type     string `json:"type"`
		Function call   `json:"function"`
	}
	var all []toolCall
	for _, c := range calls {
		if c.Name == "" {
			return nil, errors.New("a call has no name")
		}
		if c.Arguments == nil {
			c.Arguments = json.RawMessage("{}")
		}
		all = append(all, toolCall{"function", c})
	}
	return json.Marshal(all)
}

// withSystem begins the conversation with the row's system field, where there is
// one that says something.
func (s sample) withSystem(o object, f Fields) (sample, error) {
	text, _, err := o.maybeText(f.System)
	if text != "" {
		s.Messages = append(s.Messages, Message{Role: "system", Content: text})
	}
	return s, err
}

// readAlpaca reads {"instruction": …, "input": …, "output": …, "system": …}; input
// and system may be missing. With a template it is a conversation whose user says
// the instruction and, on a line behind it, the input; without one Alpaca's own
// prompt.
func readAlpaca(o object, f Fields, chat bool) (s sample, err error) {
	instruction, err := o.text(f.Instruction)
	if err != nil {
		return s, err
	}
	input, _, err := o.maybeText(f.Input)
	if err != nil {
		return s, err
	}
	output, err := o.text(f.Output)
	if err != nil {
		return s, err
	}
	switch {
	case instruction == "":
		return s, fmt.Errorf("the field %s is empty", f.Instruction)
	case output == "":
		return s, fmt.Errorf("the field %s is empty", f.Output)
	case o["history"] != nil && string(o["history"]) != "[]":
		return s, errors.New("the field history is not read: write such rows as sharegpt or chat")
	}
	if s, err = s.withSystem(o, f); err != nil {
		return s, err
	}
	if !chat {
		if len(s.Messages) > 0 {
			return s, fmt.Errorf("the field %s: %w", f.System, errNoTemplate)
		}
		return sample{prompt: alpacaPrompt(instruction, input), answer: output}, nil
	}
	if input != "" {
		instruction += "\n" + input
	}
	s.Messages = append(s.Messages, Message{Role: "user", Content: instruction}, Message{Role: "assistant", Content: output})
	return s, nil
}

// alpacaPrompt is the prompt that Stanford's Alpaca was trained with.
func alpacaPrompt(instruction, input string) string {
	if input == "" {
		return "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n" +
			"### Instruction:\n" + instruction + "\n\n### Response:\n"
	}
	return "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately completes the request.\n\n" +
		"### Instruction:\n" + instruction + "\n\n### Input:\n" + input + "\n\n### Response:\n"
}

// readCompletion reads {"prompt": …, "completion": …}: two texts, one directly
// behind the other, or two lists of messages, of which the second is learned. The
// prompt may be an empty text.
func readCompletion(o object, f Fields, _ bool) (s sample, err error) {
	if p := o.get(f.Prompt); len(p) > 0 && p[0] == '[' {
		if s.Messages, err = readMessages(o, f.Prompt, f); err != nil {
			return s, err
		}
		for i := range s.Messages {
			s.Messages[i].Mute = true
		}
		answer, err := readMessages(o, f.Completion, f)
		if err != nil {
			return s, err
		}
		s.Messages = append(s.Messages, answer...)
		return s.complete(o, f)
	}
	if s.prompt, err = o.text(f.Prompt); err != nil {
		return s, err
	}
	if s.answer, err = o.text(f.Completion); err == nil && s.answer == "" {
		err = fmt.Errorf("the field %s is empty", f.Completion)
	}
	return s, err
}

// readTextRow reads {"text": …}, all of which is learned.
func readTextRow(o object, f Fields, _ bool) (s sample, err error) {
	if s.answer, err = o.text(f.Text); err == nil && s.answer == "" {
		err = fmt.Errorf("the field %s is empty", f.Text)
	}
	return s, err
}
