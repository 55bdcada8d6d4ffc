package rows

import (
	"errors"
	"fmt"
)

// readAlpaca reads {"instruction": …, "input": …, "output": …, "system": …}; input
// and system may be missing. With a template it is a conversation whose user says
// the instruction and, on a line behind it, the input; without one Alpaca's own
// prompt.
func readAlpaca(o object, f Fields, chat bool) (s Sample, err error) {
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
			return s, fmt.Errorf("the field %s: %w", f.System, ErrNoTemplate)
		}
		return Sample{Prompt: alpacaPrompt(instruction, input), Answer: output}, nil
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
func readCompletion(o object, f Fields, _ bool) (s Sample, err error) {
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
	if s.Prompt, err = o.text(f.Prompt); err != nil {
		return s, err
	}
	if s.Answer, err = o.text(f.Completion); err == nil && s.Answer == "" {
		err = fmt.Errorf("the field %s is empty", f.Completion)
	}
	return s, err
}

// readTextRow reads {"text": …}, all of which is learned.
func readTextRow(o object, f Fields, _ bool) (s Sample, err error) {
	if s.Answer, err = o.text(f.Text); err == nil && s.Answer == "" {
		err = fmt.Errorf("the field %s is empty", f.Text)
	}
	return s, err
}
