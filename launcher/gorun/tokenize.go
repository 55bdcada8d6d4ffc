package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gorun-dev/gorun/models/chat"
	"github.com/gorun-dev/gorun/models/chat/jinja"
	"github.com/gorun-dev/gorun/models/tokenizer"
)

const tokenizeUsage = `gorun tokenize turns the lines of its input into token ids, with the tokenizer of a
Hugging Face folder: tokenizer.json, or vocab.json and merges.txt. It prints a JSON
array for each line. Special tokens that are written in a text are recognised, none
are added. A line is its text without the line feed; with --json it is a JSON string,
with --chat a conversation {"messages": [...], "tools": [...]}, whose text the folder's
chat template makes.

Examples:
  gorun tokenize --tokenizer Qwen2.5-0.5B < lines.txt
  echo '"two\nlines"' | gorun tokenize --tokenizer Qwen2.5-0.5B --json
  gorun tokenize --tokenizer Qwen2.5-0.5B-Instruct --chat --text < chats.jsonl
  echo '[9707, 1879]' | gorun tokenize --tokenizer Qwen2.5-0.5B --decode
`

// tokenizing is what the flags of gorun tokenize say.
type tokenizing struct {
	dir                string
	json, text, decode bool
	chat, prompt       bool

	tok      *tokenizer.BPE
	template *chat.Template // nil without --chat
}

func newTokenize() *cobra.Command {
	var t tokenizing
	flags := newFlagSet("tokenize")
	flags.StringVar(&t.dir, "tokenizer", "", "`folder` of the tokenizer")
	flags.BoolVar(&t.json, "json", false, "texts are JSON strings, one a line, where they are read and where they are written")
	flags.BoolVar(&t.chat, "chat", false, "read a JSON object {\"messages\": [...], \"tools\": [...]} a line and encode what the chat template makes of it")
	flags.BoolVar(&t.prompt, "add-generation-prompt", false, "with --chat: end the text with what stands before an answer")
	flags.BoolVar(&t.text, "text", false, "print the text that is encoded instead of its ids; of a chat, without --json, with its line feeds")
	flags.BoolVar(&t.decode, "decode", false, "the way back: read a JSON array of ids a line and print its text, special tokens included")
	cmd := &cobra.Command{
		Use:   "tokenize --tokenizer DIR",
		Short: "turn text into token ids, or back",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return t.run(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	return described(cmd, tokenizeUsage, flagGroup{"Flags", flags})
}

func (t *tokenizing) run(in io.Reader, out io.Writer) (err error) {
	switch {
	case t.dir == "":
		return errors.New("tokenize: --tokenizer is missing: the folder with the tokenizer.json")
	case t.text && t.decode:
		return errors.New("tokenize: --text and --decode exclude each other")
	case t.chat && t.decode:
		return errors.New("tokenize: --chat and --decode exclude each other")
	case t.prompt && !t.chat:
		return errors.New("tokenize: --add-generation-prompt needs --chat: only a chat template has a prompt")
	}
	if t.tok, err = tokenizer.Open(t.dir); err != nil {
		return fmt.Errorf("tokenize: %w", err)
	}
	if t.chat {
		if t.template, err = chat.Open(t.dir); err != nil {
			return fmt.Errorf("tokenize: %w", err)
		}
	}
	lines, w := bufio.NewReaderSize(in, 1<<20), bufio.NewWriterSize(out, 1<<16)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return errors.Join(fmt.Errorf("tokenize: stdin: %w", err), w.Flush())
		}
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return w.Flush()
		}
		result, bad := t.line(bytes.TrimSuffix(line, []byte("\n")))
		if bad != nil {
			return errors.Join(fmt.Errorf("tokenize: line %d: %w", number, bad), w.Flush())
		}
		if _, err := w.Write(append(result, '\n')); err != nil {
			return fmt.Errorf("tokenize: %w", err)
		}
		// Who types lines, or sends them one by one, gets an answer to each.
		if lines.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return fmt.Errorf("tokenize: %w", err)
			}
		}
	}
}

// line gives the output for a line of the input.
func (t *tokenizing) line(line []byte) ([]byte, error) {
	if !utf8.Valid(line) {
		return nil, errors.New("it is not UTF-8")
	}
	if t.decode {
		return t.decodeLine(line)
	}
	text, err := t.read(line)
	if err != nil {
		return nil, err
	}
	if t.text {
		return t.write(text)
	}
	ids := t.tok.Encode(text)
	if ids == nil {
		ids = []int32{} // null otherwise
	}
	return json.Marshal(ids)
}

func (t *tokenizing) decodeLine(line []byte) ([]byte, error) {
	var ids []int32
	if err := json.Unmarshal(line, &ids); err != nil || ids == nil {
		return nil, fmt.Errorf("want a JSON array of ids: %w", cmp.Or(err, errors.New("null")))
	}
	for _, id := range ids {
		if _, ok := t.tok.Token(id); !ok {
			return nil, fmt.Errorf("the tokenizer has no token %d", id)
		}
	}
	return t.write(t.tok.DecodeSpecial(ids))
}

// read gives the text of a line.
func (t *tokenizing) read(line []byte) (string, error) {
	if t.chat {
		c, err := chat.ParseConversation(line)
		if err != nil {
			return "", err
		}
		return t.template.Render(c, chat.Options{AddGenerationPrompt: t.prompt})
	}
	if !t.json {
		return string(line), nil
	}
	v, err := jinja.ParseJSON(line)
	text, ok := v.(string)
	if err == nil && !ok {
		err = fmt.Errorf("not %.40s", line)
	}
	if err != nil {
		return "", fmt.Errorf("want a JSON string: %w", err)
	}
	return text, nil
}

// write gives the line of a text.
func (t *tokenizing) write(text string) ([]byte, error) {
	if !t.json {
		if !t.chat && strings.ContainsRune(text, '\n') {
			return nil, errors.New("its text has a line feed: --json writes it so that it stays one line")
		}
		return []byte(text), nil
	}
	var line bytes.Buffer
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(line.Bytes(), []byte("\n")), nil
}
