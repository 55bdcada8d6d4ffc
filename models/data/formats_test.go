package data

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
)

// alpacaPrompt is Alpaca's, with an input.
func alpacaPrompt(instruction, input string) string {
	return "Below is an instruction that describes a task, paired with an input that provides further context. " +
		"Write a response that appropriately completes the request.\n\n" +
		"### Instruction:\n" + instruction + "\n\n### Input:\n" + input + "\n\n### Response:\n"
}

// What of each format is read, and what of it is learned, to the token.
func TestFormats(t *testing.T) {
	plain := func(o *Options) { o.Encoding.Template = nil }
	for _, c := range []struct {
		name, format, file string
		change             func(*Options)
		want               string
	}{
		{"chat", "chat", lines(said("system", "S", "user", "ab", "assistant", "cd", "user", "e", "assistant", "f")), nil,
			"<s><system>S<end>\n<user>ab<end>\n<assistant>cd<end>\n<user>e<end>\n<assistant>f<end>|" +
				"__________" + "cd<end>" + "______" + "f<end>_"},
		{"the last answer", "chat", lines(said("user", "ab", "assistant", "cd", "user", "e", "assistant", "f")), func(o *Options) { o.TrainOn = "last" },
			"<s><user>ab<end>\n<assistant>cd<end>\n<user>e<end>\n<assistant>f<end>|" + "______" + "___" + "______" + "f<end>_"},
		{"all", "chat", lines(said("user", "ab", "assistant", "cd")), func(o *Options) { o.TrainOn = "all" },
			"<s><user>ab<end>\n<assistant>cd<end>|<user>ab<end>\n<assistant>cd<end>\n"},
		{"a weight of 0", "chat", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}, {"role": "assistant", "content": "c", "weight": 1}]}`, nil,
			"<s><user>a<end>\n<assistant>b<end>\n<assistant>c<end>|" + "_____" + "____" + "c<end>_"},
		{"parts", "chat", `{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": "c"}]}`, nil,
			"<s><user>ab<end>\n<assistant>c<end>|______c<end>_"},
		{"tools", "chat", `{"tools": [1, {"b": 2, "a": 3}], "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": [7]}, {"role": "tool", "content": ""}]}`, nil,
			`<s>[[1, {"b": 2, "a": 3}]]<user>a<end>` + "\n<assistant>[7]<end>\n<tool><end>|" + strings.Repeat("_", 28) + "[7]<end>____"},
		{"sharegpt", "sharegpt", `{"system": "S", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}`, nil,
			"<s><system>S<end>\n<user>a<end>\n<assistant>b<end>|_________b<end>_"},
		{"sharegpt's calls", "sharegpt", `{"tools": "[{\"n\": 1}]", "system": "", "conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"}, {"from": "observation", "value": "o"}]}`, nil,
			`<s>[[{"n": 1}]]<user>a<end>` + "\n" + `<assistant>[{"type":"function","function":{"name":"f","arguments":{"x":1}}}]<end>` + "\n<tool>o<end>|" +
				strings.Repeat("_", 17) + `[{"type":"function","function":{"name":"f","arguments":{"x":1}}}]<end>` + "_____"},
		{"alpaca by the template", "alpaca", lines(map[string]string{"instruction": "i", "input": "j", "output": "k"}), nil,
			"<s><user>i\nj<end>\n<assistant>k<end>|_______k<end>_"},
		{"alpaca's prompt", "alpaca", lines(map[string]string{"instruction": "Add.", "input": "1 1", "output": "2"}), plain,
			"<s>" + alpacaPrompt("Add.", "1 1") + "2|" + strings.Repeat("_", len(alpacaPrompt("Add.", "1 1"))-3) + "2</s>"},
		{"prompt and completion", "prompt_completion", lines(pair("ab", "cd")), nil, "<s>abcd|__cd</s>"},
		{"messages and messages", "prompt_completion", `{"prompt": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}], "completion": [{"role": "assistant", "content": "c"}]}`, nil,
			"<s><assistant>a<end>\n<user>b<end>\n<assistant>c<end>|" + "_________" + "c<end>_"},
		{"no prompt", "prompt_completion", lines(pair("", "cd")), nil, "<s>cd|cd</s>"},
		{"no tokens around", "prompt_completion", lines(pair("ab", "cd")), func(o *Options) { o.Encoding.Tokenizer = fakeTokenizer{-1, -1} }, "abc|_cd"},
		{"begun already", "prompt_completion", lines(pair("<s>ab", "cd")), nil, "<s>abcd|__cd</s>"},
		{"other fields", "prompt_completion", `{"q": {"x": ["no", {"y": "ab"}]}, "a.b": "cd"}`, func(o *Options) { o.Fields = Fields{Prompt: "q.x.1.y", Completion: "a.b"} }, "<s>abcd|__cd</s>"},
		{"rows of text", "text_rows", lines(map[string]string{"text": "abc"}), nil, "<s>abc|abc</s>"},
		{"text", "text", "ab\ncd\n", nil, "<s>ab\ncd\n|ab\ncd\n</s>"},
		{"mixed", "mixed", lines(pair("ab", "cd")), nil, "<s>abcd|__cd</s>"},
		// The two newlines at the cut are one token: whoever answers begins with it.
		{"a token across the cut", "prompt_completion", lines(pair("ab\n", "\ncd")), nil, "<s>ab\n\ncd|__\n\ncd</s>"},
		{"an array", "prompt_completion", "\xef\xbb\xbf \n[" + strings.TrimSpace(lines(pair("ab", "cd"))) + "]\n", nil, "<s>abcd|__cd</s>"},
		{"gzip", "prompt_completion", zipped("\r\n" + lines(pair("ab", "cd"))), nil, "<s>abcd|__cd</s>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := samplesOptions(t, c.format, 300, folder(t, map[string]string{"f": c.file})+"/f")
			if c.change != nil {
				c.change(&o)
			}
			wantShown(t, open(t, o).Train, c.want)
		})
	}
}

// Each row that cannot be read is an error that names the file, the line, the field
// and what is wrong, or is skipped and counted.
func TestBadRows(t *testing.T) {
	good := strings.TrimSpace(lines(pair("good", "row")))
	for _, c := range []struct {
		name, format, row string
		want              []string
	}{
		{"no JSON", "chat", `{"messages": [}`, []string{"f:3: not valid JSON", "an object a line"}},
		{"two values", "chat", `{} {}`, []string{"f:3: not valid JSON"}},
		{"text", "chat", `"x"`, []string{"f:3: a row must be a JSON object, and this is text"}},
		{"null", "chat", `null`, []string{"f:3: a row must be a JSON object, and this is null"}},
		{"no UTF-8", "chat", "{\"messages\": \"\xff\"}", []string{"f:3: not valid UTF-8: byte 0xff, 14 bytes into the row"}},
		{"half a character", "prompt_completion", `{"prompt": "\ud83d x", "completion": "y"}`, []string{"f:3: prompt_completion: the field prompt", `\ud83d is half of a character`}},
		{"missing field", "chat", `{"text": "x", "id": 1}`, []string{"f:3: chat: the field messages is missing; there are: id, text", "data.fields"}},
		{"null field", "alpaca", `{"instruction": "x", "output": null}`, []string{"f:3: alpaca: the field output is null"}},
		{"wrong type", "prompt_completion", `{"prompt": 5, "completion": "y"}`, []string{"f:3: prompt_completion: the field prompt: must be text, and is a number"}},
		{"no list", "chat", `{"messages": "x"}`, []string{"the field messages must be a list, and is text"}},
		{"no object", "chat", `{"messages": ["x"]}`, []string{"messages.0 must be an object, and is text"}},
		{"no messages", "chat", `{"messages": []}`, []string{"messages is empty"}},
		{"no turns", "sharegpt", `{"system": "x", "conversations": []}`, []string{"conversations is empty"}},
		{"unknown role", "chat", `{"messages": [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]}`, []string{`messages.1: the role "bot" is none of system`}},
		{"unknown side", "sharegpt", `{"conversations": [{"from": "bing", "value": "a"}]}`, []string{`conversations.0: the from "bing" is none of human`}},
		{"no role", "chat", `{"messages": [{"content": "a"}]}`, []string{"messages.0: the field role is missing; there are: content"}},
		{"no content", "chat", `{"messages": [{"role": "user"}]}`, []string{"messages.0: the field content is missing"}},
		{"an empty message", "chat", `{"messages": [{"role": "user", "content": ""}]}`, []string{"message 0, of the user, is empty"}},
		{"a picture", "chat", `{"messages": [{"role": "user", "content": [{"type": "image"}]}]}`, []string{`messages.0: the field content: part 0 is of type "image"`}},
		{"a weight", "chat", `{"messages": [{"role": "user", "content": "a", "weight": 0.5}]}`, []string{"the weight is 0.5"}},
		{"a call", "sharegpt", `{"conversations": [{"from": "function_call", "value": "f(1)"}]}`, []string{"conversations.0: the value of a function_call"}},
		{"no fields", "chat", `{}`, []string{"the field messages is missing: the object is empty"}},
		{"half a list of tools", "sharegpt", `{"conversations": [{"from": "human", "value": "a"}], "tools": "[{"}`, []string{"the field tools: must be a list of tools, and is a text that is not JSON"}},
		{"no tools", "chat", `{"messages": [{"role": "user", "content": "a"}], "tools": {}}`, []string{"the field tools: must be a list of tools, and is an object"}},
		{"the template's refusal", "chat", `{"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}`, []string{"f:3: a system message must come first"}},
		{"an empty answer", "alpaca", `{"instruction": "x", "output": ""}`, []string{"the field output is empty"}},
		{"an empty instruction", "alpaca", `{"instruction": "", "output": "x"}`, []string{"the field instruction is empty"}},
		{"a history", "alpaca", `{"instruction": "x", "output": "y", "history": [["a", "b"]]}`, []string{"history"}},
		{"an empty completion", "prompt_completion", `{"prompt": "x", "completion": ""}`, []string{"the field completion is empty"}},
		{"messages and text", "prompt_completion", `{"prompt": [{"role": "user", "content": "a"}], "completion": "b"}`, []string{"the field completion must be a list, and is text"}},
		{"no messages before", "prompt_completion", `{"prompt": [], "completion": []}`, []string{"prompt is empty"}},
		{"an empty text", "text_rows", `{"text": ""}`, []string{"the field text is empty"}},
		{"no format", "mixed", `{"question": "x"}`, []string{"f:3: no field tells the format: there are question"}},
		{"two formats", "mixed", `{"messages": [], "text": "x"}`, []string{"those of several formats, chat and text_rows"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := folder(t, map[string]string{"f": "\n\n" + c.row + "\n"})
			o := samplesOptions(t, c.format, 100, dir+"/f")
			_, err := Open(context.Background(), o)
			wantError(t, err, append(c.want, filepath.Join(dir, "f")+":3: ", "data.bad_rows: skip")...)

			// Skipped, it costs nothing but itself.
			dir = folder(t, map[string]string{"f": good + "\n\n" + c.row + "\n" + good})
			o = samplesOptions(t, "mixed", 100, dir+"/f")
			if c.name == "no format" || c.name == "two formats" || strings.Contains(c.row, "messages") {
				o.BadRows = "skip"
				i := open(t, o).Train.Info()
				if i.Samples != 2 || i.Skipped != 1 || !strings.Contains(i.FirstSkipped, "f:3: ") {
					t.Errorf("%+v", i)
				}
			}
		})
	}
}

// An array's rows have lines, too, and its end is looked for.
func TestBadArrays(t *testing.T) {
	for text, want := range map[string]string{
		"[{\"prompt\": \"a\", \"completion\": \"b\"},\n\n {\"prompt\":\n 1}]":    "f:3: prompt_completion: the field prompt",
		"\n[{\"prompt\": \"a\", \"completion\": \"b\"},\n {\"prompt\": \"a\",\n": "f:4: the file ends within the array",
		"[{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": 1}]":          "f:2: what begins here is not valid JSON",
		"[{\"prompt\": \"a\", \"completion\": \"b\"}]\n[1]":                      "f:2: something stands behind the end of the array",
		"[\n{\"prompt\": \"a\", \"completion\": \"b\"},\n5]":                     "f:3: a row must be a JSON object, and this is a number",
		"[\n]":                              "no sample is left to learn from: the files hold no rows",
		"\n\n":                              "no sample is left to learn from: the files hold no rows",
		"[{\"prompt\": \"a\",\n\"b\": tru}": "is not valid JSON",
		"\x1f\x8b\x08 no gzip":              "gzip",
	} {
		o := samplesOptions(t, "prompt_completion", 100, folder(t, map[string]string{"f": text})+"/f")
		_, err := Open(context.Background(), o)
		wantError(t, err, want)
	}
}

// Settings that make no sense are errors that name the key.
func TestBadSettings(t *testing.T) {
	file := folder(t, map[string]string{"f": lines(pair("a", "b"))}) + "/f"
	for want, change := range map[string]func(*Options){
		"data.train_on":                     func(o *Options) { o.TrainOn = "user" },
		"data.truncation":                   func(o *Options) { o.Truncation = "keep" },
		"data.bad_rows":                     func(o *Options) { o.BadRows = "ignore" },
		"needs a tokenizer":                 func(o *Options) { o.Encoding.Tokenizer = nil },
		"ids up to 263, and the model's":    func(o *Options) { o.Vocab = 263 },
		"data.format chat: a conversation":  func(o *Options) { o.Format, o.Encoding.Template = "chat", nil },
		"data.max_bytes":                    func(o *Options) { o.MaxBytes = 5 },
		"data.weights leaves none of them":  func(o *Options) { o.Weights = []float64{0.1} },
		"data.weights has 2 numbers":        func(o *Options) { o.Weights = []float64{1, 2} },
		"data.fields.text: rows of":         func(o *Options) { o.Fields.Text = "x" },
		"data.fields: rows of data.format":  func(o *Options) { o.Format, o.Fields.Text = "mixed", "x" },
		"names all files":                   func(o *Options) { o.Eval = o.Train },
		"data.cache":                        func(o *Options) { o.Cache = "" },
		"data.train names no files":         func(o *Options) { o.Train = nil },
		"holds back 0 samples and leaves 1": func(o *Options) { o.EvalSplit = 0.1 },
	} {
		o := samplesOptions(t, "prompt_completion", 100, file)
		change(&o)
		_, err := Open(context.Background(), o)
		wantError(t, err, want)
	}
}
