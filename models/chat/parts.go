package chat

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gorun-dev/gorun/models/chat/jinja"
)

// Rendered is the text of a conversation and what of it is the assistant's.
type Rendered struct {
	Text string
	// Assistant are the assistant's bytes, as the package's comment defines them, in
	// order and apart from each other; none is empty. There is none where the
	// assistant says nothing.
	Assistant []jinja.Span
}

// RenderParts renders a conversation and tells the assistant's text from the rest.
// Without {% generation %} blocks the template is rendered twice more for each
// message of the assistant. A message whose text can't be told is a
// [*MessageError].
func (t *Template) RenderParts(c Conversation, o Options) (Rendered, error) {
	label, chosen, err := t.choose(c, o)
	if err != nil {
		return Rendered{}, err
	}
	if err := chosen.Misplaced(); err != nil {
		return Rendered{}, fmt.Errorf("%s: %w", label, err)
	}
	out, err := t.render(c, o)
	if err != nil {
		return Rendered{}, err
	}
	r := Rendered{out.Text, out.Generated}
	if chosen.MarksGeneration() {
		return r, nil
	}
	for i, m := range c.Messages {
		if role(m) != "assistant" {
			continue
		}
		span, err := t.locate(c, i, r.Text, o)
		if err != nil {
			return Rendered{}, &MessageError{i, role(m), err}
		}
		if span.End > span.Start {
			r.Assistant = append(r.Assistant, span)
		}
	}
	return r, nil
}

const useMarks = "a template with {% generation %} blocks would tell"

// locate finds the text of message i in whole, the text of all messages.
func (t *Template) locate(c Conversation, i int, whole string, o Options) (jinja.Span, error) {
	o.AddGenerationPrompt = true
	prompt, err := t.Render(Conversation{c.Messages[:i], c.Tools}, o)
	if err != nil {
		return jinja.Span{}, fmt.Errorf("its text can't be told: the messages before it can't be rendered alone: %w", err)
	}
	o.AddGenerationPrompt = false
	through, err := t.Render(Conversation{c.Messages[:i+1], c.Tools}, o)
	if err != nil {
		return jinja.Span{}, fmt.Errorf("its text can't be told: the messages up to it can't be rendered alone: %w", err)
	}
	if !strings.HasPrefix(through, prompt) {
		return jinja.Span{}, errors.New("its text can't be told: it does not begin with the prompt for it; " + useMarks)
	}
	if !strings.HasPrefix(whole, through) {
		return jinja.Span{}, errors.New("its text can't be told: the template changes it, or what is before it, once there are later messages; " + useMarks)
	}
	return jinja.Span{Start: len(prompt), End: len(through)}, nil
}
