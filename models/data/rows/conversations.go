package rows

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

// readChat reads {"messages": [{"role": …, "content": …}, …], "tools": […]}.
func readChat(o object, f Fields, _ bool) (Sample, error) {
	messages, err := readMessages(o, f.Messages, f)
	if err != nil {
		return Sample{}, err
	}
	return Sample{Conversation: Conversation{Messages: messages}}.complete(o, f)
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
func (s Sample) complete(o object, f Fields) (Sample, error) {
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
		return m, o.missing(f.Content)
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
	if !json.Valid(v) { // of a text
		return nil, errors.New("must be a list of tools, and is a text that is not JSON")
	}
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
func readShareGPT(o object, f Fields, _ bool) (s Sample, err error) {
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
func (s Sample) withSystem(o object, f Fields) (Sample, error) {
	text, _, err := o.maybeText(f.System)
	if text != "" {
		s.Messages = append(s.Messages, Message{Role: "system", Content: text})
	}
	return s, err
}
