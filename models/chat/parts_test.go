package chat

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models/chat/jinja"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

func assistants(r Rendered) []string {
	var texts []string
	for _, span := range r.Assistant {
		texts = append(texts, r.Text[span.Start:span.End])
	}
	return texts
}

const turns = `{"messages": [
	{"role": "user", "content": "Hi  there \n"}, {"role": "assistant", "content": " Hällo! "},
	{"role": "user", "content": "More"}, {"role": "assistant", "content": "Sure.", "tool_calls": [{"function": {"name": "f", "arguments": {"a": "é"}}}]},
	{"role": "tool", "content": "1"}, {"role": "assistant", "content": "One."}]}`

// Without marks the assistant's text goes from behind the prompt for it to the end
// of what the template writes for it, to the byte.
func TestAssistantsTextByPrefixes(t *testing.T) {
	qwen, err := New(string(readFile(t, testenv.Data(t, "tok/trl_qwen2_5.jinja"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := conversation(t, turns)
	got, err := qwen.RenderParts(c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		" Hällo! <|im_end|>\n",
		"Sure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}\n</tool_call><|im_end|>\n",
		"One.<|im_end|>\n",
	}
	if !slices.Equal(assistants(got), want) {
		t.Errorf("got  %q\nwant %q", assistants(got), want)
	}
	whole, err := qwen.Render(c, Options{})
	if err != nil || whole != got.Text {
		t.Errorf("the text is %q, rendered alone %q (%v)", got.Text, whole, err)
	}
	prompted, err := qwen.RenderParts(c, Options{AddGenerationPrompt: true})
	if err != nil || prompted.Text != whole+"<|im_start|>assistant\n" || !slices.Equal(prompted.Assistant, got.Assistant) {
		t.Errorf("with the prompt at the end: %+v (%v)", prompted, err)
	}

	llama, err := New(string(readFile(t, testenv.Data(t, "tok/trl_llama3.jinja"))), map[string]string{"bos_token": "<|begin_of_text|>"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err = llama.RenderParts(c, Options{}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"Hällo!<|eot_id|>", "Sure.<|eot_id|>", "One.<|eot_id|>"}; !slices.Equal(assistants(got), want) {
		t.Errorf("got  %q\nwant %q", assistants(got), want)
	}
}

// Qwen2.5's template with marks gives the same text as the one without, and marks
// what the prefixes tell, with the line feed of the prompt before it.
func TestMarksAgreeWithPrefixes(t *testing.T) {
	plain, err := New(string(readFile(t, testenv.Data(t, "tok/trl_qwen2_5.jinja"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	marked, err := New(string(readFile(t, testenv.Data(t, "tok/trl_qwen2_5_training.jinja"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := conversation(t, turns)
	for tmpl, want := range map[*Template]bool{plain: false, marked: true} {
		if marks, err := tmpl.MarksGeneration(c, Options{}); err != nil || marks != want {
			t.Errorf("marks: %v (%v), want %v", marks, err, want)
		}
	}
	byPrefix, err := plain.RenderParts(c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	byMark, err := marked.RenderParts(c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if byMark.Text != byPrefix.Text {
		t.Fatalf("got  %q\nwant %q", byMark.Text, byPrefix.Text)
	}
	for i, span := range byPrefix.Assistant {
		byPrefix.Assistant[i].Start = span.Start - 1
	}
	if !slices.Equal(byMark.Assistant, byPrefix.Assistant) {
		t.Errorf("marks %v, prefixes %v", byMark.Assistant, byPrefix.Assistant)
	}
}

func TestAssistantsTextThatCannotBeTold(t *testing.T) {
	const loop = "{% for m in messages %}"
	for _, c := range []struct {
		name, source, conversation, want string
		message                          int
	}{
		{"drops earlier thoughts", loop + "<{{ m.role }}>{{ m.content if loop.last else m.content.split('|')[-1] }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
			`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "hm|b"}, {"role": "user", "content": "c"}]}`,
			"message 1 (assistant): its text can't be told: the template changes it, or what is before it, once there are later messages", 1},
		{"another prompt", loop + "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}",
			`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`,
			"message 1 (assistant): its text can't be told: it does not begin with the prompt for it", 1},
		{"assistant first", "{{ messages[0].role }}{% for m in messages %}{{ m.content }}{% endfor %}",
			`{"messages": [{"role": "assistant", "content": "b"}]}`,
			"message 0 (assistant): its text can't be told: the messages before it can't be rendered alone: chat template: line 1, column 16: list has no element 0", 0},
		{"number of messages", "{% if messages | length % 2 %}{{ raise_exception('odd') }}{% endif %}" + loop + "{{ m.content }}{% endfor %}",
			`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`,
			"message 1 (assistant): its text can't be told: the messages before it can't be rendered alone: chat template: line 1, column 49: the template refuses: odd", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			tmpl, err := New(c.source, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = tmpl.RenderParts(conversation(t, c.conversation), Options{})
			var of *MessageError
			if !errors.As(err, &of) || of.Message != c.message || of.Role != "assistant" || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
	// Marks within a macro are refused, though the template renders.
	tmpl, err := New("{% macro f() %}{% generation %}a{% endgeneration %}{% endmacro %}{{ f() }}", nil)
	if err != nil {
		t.Fatal(err)
	}
	c := conversation(t, turns)
	if got, err := tmpl.Render(c, Options{}); err != nil || got != "a" {
		t.Errorf("got %q and error %v", got, err)
	}
	if _, err := tmpl.RenderParts(c, Options{}); !errors.Is(err, jinja.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

// An assistant that says nothing has no text; a conversation without one neither.
func TestNoAssistantsText(t *testing.T) {
	for _, source := range []string{
		"{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
		"{% for m in messages %}{{ m.content }}{% endfor %}",
	} {
		tmpl, err := New(source, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{
			`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}`,
			`{"messages": [{"role": "user", "content": "a"}]}`,
		} {
			got, err := tmpl.RenderParts(conversation(t, text), Options{})
			if err != nil || got.Text != "a" || got.Assistant != nil {
				t.Errorf("got %+v and error %v", got, err)
			}
		}
	}
}

func TestConversationsThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"messages": []}`:   "the conversation is empty",
		`{"messages": null}`: "messages are no list",
		`{"tools": []}`:      `the object has no "messages"`,
		`[]`:                 "want a JSON object",
		`{"messages": [{"role": "user", "content": "a"}, "b"]}`:          "message 1: it is no object",
		`{"messages": [{"content": "a"}]}`:                               `message 0: it has no "role"`,
		`{"messages": [{"role": 5, "content": "a"}]}`:                    `message 0: it has no "role"`,
		`{"messages": [{"role": "user", "content": 5}]}`:                 "message 0 (user): its content is a number",
		`{"messages": [{"role": "user", "content": "a"}], "tools": {}}`:  "tools are no list",
		`{"messages": [{"role": "user", "content": "a"}], "tools": [1]}`: "tool 0 is no object",
		`{"messages": [{"role": "user", "content": "\ud83d"}]}`:          "half a character",
		"{\"messages\": \"\xff\"}":                                       "not valid UTF-8",
		`{"messages": `:                                                  "unexpected EOF",
	} {
		if _, err := ParseConversation([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

// The variables of a render win over special tokens, not over the conversation.
func TestVariables(t *testing.T) {
	tmpl, err := New("{{ bos_token }}{{ mood }}{{ documents }}{{ tools }}", map[string]string{"bos_token": "<s>"})
	if err != nil {
		t.Fatal(err)
	}
	c := conversation(t, `{"messages": [{"role": "user"}], "tools": []}`)
	got, err := tmpl.Render(c, Options{Vars: map[string]jinja.Value{"bos_token": "B", "mood": int64(5), "documents": jinja.List{}}})
	if err != nil || got != "B5[][]" {
		t.Errorf("got %q and error %v", got, err)
	}
	for _, name := range []string{"messages", "tools", "add_generation_prompt"} {
		_, err := tmpl.Render(c, Options{Vars: map[string]jinja.Value{name: nil}})
		if err == nil || !strings.Contains(err.Error(), "the variable "+name+" can't be set") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
