package chat

import (
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/models/chat/jinja"
)

// Conversation is what a template renders. ParseConversation and NewConversation
// make one whose messages have the right form.
type Conversation struct {
	// Messages are objects with a role, a content (a text, a list of parts, an
	// object, or none) and whatever else the template reads, such as tool_calls.
	Messages jinja.List
	// Tools are the descriptions of functions that the assistant may call. nil and
	// an empty list are two things to some templates.
	Tools jinja.List
}

// ParseConversation reads {"messages": [...], "tools": [...]}; tools may be missing
// or null. The order of keys is kept, for templates write tools and arguments as
// they find them. Other keys of the object are not looked at.
func ParseConversation(text []byte) (Conversation, error) {
	v, err := jinja.ParseJSON(text)
	if err != nil {
		return Conversation{}, err
	}
	object, ok := v.(*jinja.Dict)
	if !ok {
		return Conversation{}, errors.New(`want a JSON object {"messages": [...]}`)
	}
	messages, ok := object.Get("messages")
	if !ok {
		return Conversation{}, errors.New(`the object has no "messages"`)
	}
	tools, _ := object.Get("tools")
	return NewConversation(messages, tools)
}

// NewConversation takes messages and tools as [jinja.ParseJSON] reads them; tools
// may be nil.
func NewConversation(messages, tools jinja.Value) (Conversation, error) {
	var c Conversation
	var ok bool
	if c.Messages, ok = messages.(jinja.List); !ok {
		return c, errors.New("messages are no list")
	}
	if len(c.Messages) == 0 {
		return c, errors.New("the conversation is empty: it has no messages")
	}
	for i, m := range c.Messages {
		if err := checkMessage(m); err != nil {
			return c, &MessageError{i, role(m), err}
		}
	}
	if tools == nil {
		return c, nil
	}
	if c.Tools, ok = tools.(jinja.List); !ok {
		return c, errors.New("tools are no list")
	}
	for i, tool := range c.Tools {
		if _, ok := tool.(*jinja.Dict); !ok {
			return c, fmt.Errorf("tool %d is no object", i)
		}
	}
	return c, nil
}

// MessageError is a fault of one message, or of the text that a template makes of
// it.
type MessageError struct {
	Message int    // from 0
	Role    string // empty where the message has none
	Err     error
}

func (e *MessageError) Error() string {
	if e.Role == "" {
		return fmt.Sprintf("message %d: %v", e.Message, e.Err)
	}
	return fmt.Sprintf("message %d (%s): %v", e.Message, e.Role, e.Err)
}

func (e *MessageError) Unwrap() error { return e.Err }

func checkMessage(v jinja.Value) error {
	m, ok := v.(*jinja.Dict)
	if !ok {
		return errors.New("it is no object")
	}
	if role(v) == "" {
		return errors.New(`it has no "role", or one that is no text`)
	}
	switch content, _ := m.Get("content"); content.(type) {
	case nil, string, jinja.List, *jinja.Dict:
		return nil
	}
	return errors.New("its content is a number or a boolean: put it in quotes")
}

func role(v jinja.Value) string {
	m, ok := v.(*jinja.Dict)
	if !ok {
		return ""
	}
	r, _ := m.Get("role")
	text, _ := r.(string)
	return text
}
