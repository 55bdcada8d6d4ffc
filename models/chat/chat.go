// Package chat turns conversations into the text that a chat model reads, with the
// chat template of a Hugging Face folder, byte for byte as
// AutoTokenizer.apply_chat_template does; and it says which bytes of that text are
// the assistant's, for the masks of training.
//
// # Which bytes are the assistant's
//
// A template that has {% generation %} blocks says so itself: the bytes that those
// blocks write are the assistant's, these and no others.
//
// For another template, the text of message i, of role assistant, is what
// rendering messages 0..i writes behind what rendering messages 0..i-1 with
// add_generation_prompt writes: all that a model has to write itself from the
// prompt on, to the end of what the template writes for that message. With Qwen2.5
// this is the content, its tool calls, and "<|im_end|>\n" with the line feed, but not
// "<|im_start|>assistant\n"; with Llama 3 the content and "<|eot_id|>". The first
// text must begin with the second, and the whole conversation's with the first. A
// template that writes earlier messages otherwise once there are later ones (one
// that drops the thoughts of past turns does) gives a [*MessageError].
package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/models/chat/jinja"
)

// ErrNoTemplate says that a folder has no chat template: that of a model which is
// no chat model, for the most part.
var ErrNoTemplate = errors.New("there is no chat template")

// Template is the chat template of a model, or several with names, and its special
// tokens. Any number of goroutines may use it at once.
type Template struct {
	file     string // where the templates come from, for errors
	variants map[string]variant
	tokens   map[string]jinja.Value
}

// variant is one template. One that can't be read is an error when it is chosen.
type variant struct {
	template *jinja.Template
	err      error
}

// Options of a render.
type Options struct {
	// Name chooses among several templates. Empty takes tool_use where there are
	// tools and the folder has one, else default.
	Name string
	// AddGenerationPrompt ends the text with what stands before an answer.
	AddGenerationPrompt bool
	// Vars are further variables of the template, such as enable_thinking or
	// date_string. They win over the special tokens.
	Vars map[string]jinja.Value
	// Now is the clock of templates that write the date; nil takes the machine's.
	// Training that shall see the same text tomorrow sets it, or the template's own
	// variable for the date.
	Now func() time.Time
}

// New makes a template of its source. tokens are special tokens by name, such as
// bos_token.
func New(source string, tokens map[string]string) (*Template, error) {
	t := &Template{file: "chat template", tokens: map[string]jinja.Value{}}
	for name, token := range tokens {
		t.tokens[name] = token
	}
	return t, t.parse(map[string]string{defaultName: source})
}

const (
	defaultName = "default"
	toolsName   = "tool_use"
)

// parse reads the templates of t. The one for ordinary use must be readable; if
// another is not, choosing it fails.
func (t *Template) parse(sources map[string]string) error {
	t.variants = map[string]variant{}
	for name, source := range sources {
		parsed, err := jinja.Parse(source)
		if err != nil {
			err = fmt.Errorf("%s: %w", t.label(name), err)
		}
		t.variants[name] = variant{parsed, err}
	}
	return t.variants[defaultName].err
}

// label is how errors speak of a template.
func (t *Template) label(name string) string {
	if name == defaultName {
		return t.file
	}
	return t.file + ", template " + name
}

// Names are those of the templates, in alphabetical order.
func (t *Template) Names() []string {
	var names []string
	for name := range t.variants {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (t *Template) choose(c Conversation, o Options) (string, *jinja.Template, error) {
	name := o.Name
	if name == "" {
		name = defaultName
		if _, ok := t.variants[toolsName]; ok && c.Tools != nil {
			name = toolsName
		}
	}
	v, ok := t.variants[name]
	if !ok {
		return "", nil, fmt.Errorf("%s: there is no template %s, but %s", t.file, name, strings.Join(t.Names(), ", "))
	}
	return t.label(name), v.template, v.err
}

// MarksGeneration says whether the template that Render would take for c has
// {% generation %} blocks.
func (t *Template) MarksGeneration(c Conversation, o Options) (bool, error) {
	_, chosen, err := t.choose(c, o)
	if err != nil {
		return false, err
	}
	return chosen.MarksGeneration(), nil
}

// Render gives the text of a conversation. The template's own refusal of it is an
// error for which errors.Is(err, jinja.ErrRaised) holds.
func (t *Template) Render(c Conversation, o Options) (string, error) {
	out, err := t.render(c, o)
	return out.Text, err
}

func (t *Template) render(c Conversation, o Options) (jinja.Output, error) {
	label, chosen, err := t.choose(c, o)
	if err != nil {
		return jinja.Output{}, err
	}
	vars, err := t.vars(c, o)
	if err != nil {
		return jinja.Output{}, err
	}
	out, err := chosen.Render(vars, jinja.Options{Now: o.Now})
	if err != nil {
		return jinja.Output{}, fmt.Errorf("%s: %w", label, err)
	}
	return out, nil
}

// vars are the variables that a template is given.
func (t *Template) vars(c Conversation, o Options) (map[string]jinja.Value, error) {
	vars := map[string]jinja.Value{
		"messages":              c.Messages,
		"tools":                 nil,
		"documents":             nil,
		"add_generation_prompt": o.AddGenerationPrompt,
	}
	for name, v := range o.Vars {
		if _, own := vars[name]; own && name != "documents" {
			return nil, fmt.Errorf("the variable %s can't be set: it comes from the conversation", name)
		}
		vars[name] = v
	}
	for name, token := range t.tokens {
		if _, ok := vars[name]; !ok {
			vars[name] = token
		}
	}
	if c.Tools != nil {
		vars["tools"] = c.Tools
	}
	return vars, nil
}
