package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gorun-dev/gorun/launcher/train"
	"github.com/gorun-dev/gorun/models/chat"
	"github.com/gorun-dev/gorun/models/sample"
	"github.com/gorun-dev/gorun/models/tokenizer"
)

const sampleUsage = `gorun sample lets a model write: it continues a prompt with the model and the tokenizer of
a folder in Hugging Face's format, such as the one that a job leaves in export. Where the
folder has a chat template, the prompt is what the user says and the text is the answer;
--raw continues the prompt as it is. The text ends with the model's token for that, with
one of --stop, or after --max-tokens.

Examples:
  gorun sample --model runs/quickstart/export --raw --prompt "func main"
  gorun sample --model Qwen2.5-0.5B-Instruct --adapter runs/lora/export --prompt "Who are you?"
  gorun sample --model Qwen2.5-0.5B-Instruct --temperature 0 < question.txt
`

// sampling is what the flags of gorun sample say.
type sampling struct {
	model          train.GeneratorOptions
	prompt, system string
	raw            bool
	stop           []string
	options        sample.Options
}

func newSample() *cobra.Command {
	var s sampling
	flags := newFlagSet("sample")
	flags.StringVar(&s.model.Model, "model", "", "`folder` of the model and its tokenizer")
	flags.StringVar(&s.model.Adapters, "adapter", "", "`folder` of adapters in PEFT's format, for this model")
	flags.StringVar(&s.prompt, "prompt", "", "`text` to continue, or to answer (default: what stdin holds)")
	flags.StringVar(&s.system, "system", "", "`text` of the system message, before the prompt")
	flags.BoolVar(&s.raw, "raw", false, "continue the prompt itself, whatever template the model has")
	flags.IntVar(&s.options.MaxTokens, "max-tokens", 256, "new tokens at most, `N`")
	flags.Float64Var(&s.options.Temperature, "temperature", 0.7, "`T` divides the logits; 0 always takes the likeliest token")
	flags.IntVar(&s.options.TopK, "top-k", 0, "choose among the `K` likeliest tokens; 0: among all")
	flags.Float64Var(&s.options.TopP, "top-p", 0.95, "choose among the likeliest tokens that together have this probability, `P`")
	flags.Uint64Var(&s.options.Seed, "seed", 0, "`seed` of the choices: the same gives the same text")
	flags.StringArrayVar(&s.stop, "stop", nil, "`text` that ends the answer and is left out; may be given several times")
	flags.StringVar(&s.model.Device, "device", "auto", "`where` to compute: auto, cpu or cuda")
	flags.IntVar(&s.model.Threads, "threads", 0, "cores to compute on, on the CPU, `N` (default: all)")
	cmd := &cobra.Command{
		Use:   "sample --model DIR",
		Short: "let a model write",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("prompt") {
				text, err := io.ReadAll(cmd.InOrStdin())
				if err != nil {
					return fmt.Errorf("sample: stdin: %w", err)
				}
				s.prompt = strings.TrimSuffix(string(text), "\n")
			}
			ctx, stop := interruptible()
			defer stop()
			if err := s.run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("sample: %w", err)
			}
			return nil
		},
	}
	return described(cmd, sampleUsage, flagGroup{"Flags", flags})
}

func (s *sampling) run(ctx context.Context, out, about io.Writer) (err error) {
	switch {
	case s.model.Model == "":
		return errors.New("--model is missing: the folder of a model")
	case s.model.Device != "auto" && s.model.Device != "cpu" && s.model.Device != "cuda":
		return fmt.Errorf("--device %s: want auto, cpu or cuda", s.model.Device)
	case s.model.Threads < 0:
		return fmt.Errorf("--threads %d: want a number of cores, or 0 for all", s.model.Threads)
	case slices.Contains(s.stop, ""):
		return errors.New("--stop is empty: give a text")
	}
	tok, err := tokenizer.Open(s.model.Model)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w%s", err, s.meant())
	}
	if err != nil {
		return err
	}
	ids, err := s.encode(tok)
	if err != nil {
		return err
	}
	g, err := train.OpenGenerator(ctx, s.model)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if err := tokenizer.CheckVocab(tok, g.Vocab()); err != nil {
		return err
	}
	fmt.Fprintf(about, "%s; %d tokens of %d\n", g.About(), len(ids), g.Positions())
	p := &printer{tok: tok, out: out, stop: s.stop}
	if s.options.Stop, err = s.ends(tok); err != nil {
		return err
	}
	s.options.Each = p.token
	if _, err := g.Continue(ctx, ids, s.options); err != nil {
		return err
	}
	return p.end()
}

// meant says which folder it may have been, where the one given is no model's.
func (s *sampling) meant() string {
	there := func(elem ...string) bool {
		_, err := os.Stat(filepath.Join(append([]string{s.model.Model}, elem...)...))
		return err == nil
	}
	switch {
	case !there():
		return ""
	case there("adapter_config.json"):
		return "; the folder holds adapters: give it to --adapter, and the folder of the model that they are for to --model"
	case there("export"):
		return fmt.Sprintf("; the model of this run is in %s", filepath.Join(s.model.Model, "export"))
	case there("manifest.json"):
		return "; the folder is a checkpoint: gorun export makes a model of it"
	}
	return ""
}

// template is the chat template of the model, or the one that its adapters were trained
// with.
func (s *sampling) template(tok *tokenizer.BPE) (*chat.Template, error) {
	if s.model.Adapters != "" {
		text, err := os.ReadFile(filepath.Join(s.model.Adapters, "chat_template.jinja"))
		if err == nil {
			names := map[string]string{}
			for name, find := range map[string]func() (int32, bool){"bos_token": tok.BOS, "eos_token": tok.EOS} {
				if id, ok := find(); ok {
					names[name], _ = tok.Token(id)
				}
			}
			return chat.New(string(text), names)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return chat.Open(s.model.Model)
}

// ends are the tokens at which the model ends, those that its adapters learnt among them.
func (s *sampling) ends(tok *tokenizer.BPE) ([]int32, error) {
	ends := tok.EOSIDs()
	if s.model.Adapters == "" {
		return ends, nil
	}
	learnt, err := tok.EndsOf(filepath.Join(s.model.Adapters, "generation_config.json"))
	return append(slices.Clone(ends), learnt...), err
}

// encode turns the prompt into tokens: as it is, behind the tokens that the tokenizer
// puts before a text, or as what a user says in a conversation.
func (s *sampling) encode(tok *tokenizer.BPE) ([]int32, error) {
	template, err := s.template(tok)
	switch {
	case errors.Is(err, chat.ErrNoTemplate) && s.system != "":
		return nil, fmt.Errorf("--system needs a chat template: %w", err)
	case errors.Is(err, chat.ErrNoTemplate), s.raw:
		if s.system != "" {
			return nil, errors.New("--system and --raw exclude each other")
		}
		return sample.Prompt(tok, s.prompt)
	case err != nil:
		return nil, err
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []message{{"user", s.prompt}}
	if s.system != "" {
		messages = append([]message{{"system", s.system}}, messages...)
	}
	text, err := json.Marshal(map[string]any{"messages": messages})
	if err != nil {
		return nil, err
	}
	c, err := chat.ParseConversation(text)
	if err != nil {
		return nil, err
	}
	rendered, err := template.Render(c, chat.Options{AddGenerationPrompt: true})
	if err != nil {
		return nil, err
	}
	return tok.Encode(rendered), nil
}

// printer writes a text while its tokens come.
type printer struct {
	tok     *tokenizer.BPE
	out     io.Writer
	stop    []string
	ids     []int32
	printed int // bytes of the text
	err     error
}

// token takes the next token. It says false when the text is at its end.
func (p *printer) token(id int32) bool {
	p.ids = append(p.ids, id)
	text, ended := p.cut(p.tok.Decode(p.ids))
	p.print(text[:len(text)-p.pending(text, ended)])
	return !ended && p.err == nil
}

// cut ends text before the first of the stop texts.
func (p *printer) cut(text string) (before string, ended bool) {
	for _, s := range p.stop {
		if i := strings.Index(text, s); i >= 0 && s != "" {
			text, ended = text[:i], true
		}
	}
	return text, ended
}

// pending is how many bytes at the end of text may yet become something else: a
// character whose bytes have not all come, or the beginning of a stop text.
func (p *printer) pending(text string, ended bool) int {
	if ended {
		return 0
	}
	n := 0
	for i := 1; i <= min(len(text), utf8.UTFMax); i++ {
		if tail := text[len(text)-i:]; strings.HasPrefix(tail, "\uFFFD") || utf8.RuneStart(tail[0]) && !utf8.FullRuneInString(tail) {
			n = i
		}
	}
	for _, s := range p.stop {
		for i := min(len(s)-1, len(text)); i > n; i-- {
			if strings.HasSuffix(text, s[:i]) {
				n = i
				break
			}
		}
	}
	return n
}

func (p *printer) print(text string) {
	if p.err == nil && len(text) > p.printed {
		_, p.err = io.WriteString(p.out, shown(text[p.printed:], p.out))
		p.printed = len(text)
	}
}

// end writes what was held back, and ends the line.
func (p *printer) end() error {
	text, _ := p.cut(p.tok.Decode(p.ids))
	p.print(text)
	if p.err == nil {
		_, p.err = io.WriteString(p.out, "\n")
	}
	return p.err
}

// shown is text without what would steer a terminal, where out is one.
func shown(text string, out io.Writer) string {
	if f, ok := out.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return text
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return utf8.RuneError
		}
		return r
	}, text)
}
