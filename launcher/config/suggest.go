package config

import (
	"strings"
)

// synonyms are names that other tools give to our keys.
var synonyms = map[string]string{
	"learning_rate": "train.lr", "batch_size": "train.micro_batch",
	"per_device_train_batch_size": "train.micro_batch", "micro_batch_size": "train.micro_batch",
	"gradient_accumulation_steps": "train.grad_accum", "accumulation": "train.grad_accum",
	"steps": "train.max_steps", "iterations": "train.max_steps", "max_iters": "train.max_steps",
	"num_train_epochs": "train.epochs", "lr_scheduler_type": "train.schedule", "scheduler": "train.schedule",
	"warmup": "train.warmup_steps", "num_warmup_steps": "train.warmup_steps", "num_cycles": "train.cycles", "num_decay_steps": "train.decay_steps",
	"early_stopping_patience": "eval.patience", "early_stopping_threshold": "eval.min_delta", "eval_on_start": "eval.at_start",
	"load_best_model_at_end": "checkpoint.best", "grad_clip": "train.max_grad_norm", "clip": "train.max_grad_norm",
	"dtype": "train.precision", "beta1": "train.betas", "beta2": "train.betas", "adam_eps": "train.eps",
	"n_layer": "model.layers", "num_hidden_layers": "model.layers", "num_layers": "model.layers",
	"hidden_size": "model.hidden", "dim": "model.hidden", "d_model": "model.hidden", "n_embd": "model.hidden",
	"num_attention_heads": "model.heads", "n_head": "model.heads", "head_size": "model.head_dim", "d_head": "model.head_dim", "num_key_value_heads": "model.kv_heads",
	"intermediate_size": "model.ffn", "vocab_size": "model.vocab", "rms_norm_eps": "model.norm_eps",
	"tie_word_embeddings": "model.tie_embeddings", "model_name_or_path": "model.path",
	"max_position_embeddings": "model.max_seq_len", "block_size": "data.seq_len", "max_length": "data.seq_len",
	"sequence_length": "data.seq_len", "context_length": "data.seq_len", "dataset": "data.train",
	"cutoff_len": "data.seq_len", "chat_template": "data.template", "sample_packing": "data.packing", "neat_packing": "data.packing",
	"val_size": "data.eval_split", "val_set_size": "data.eval_split", "train_on_inputs": "data.train_on", "train_on_prompt": "data.train_on",
	"field_instruction": "data.fields.instruction", "field_input": "data.fields.input", "field_output": "data.fields.output", "field_messages": "data.fields.messages",
	"files": "data.train", "val": "data.eval", "validation": "data.eval", "bucket_size_mb": "parallel.bucket_cap_mb",
	"backend": "comm.engine", "eval_every": "eval.every", "eval_steps": "eval.every", "save_every": "checkpoint.every",
	"save_steps": "checkpoint.every", "save_total_limit": "checkpoint.keep", "resume_from_checkpoint": "checkpoint.resume",
	"logging_steps": "log.every", "output_dir": "output", "run_name": "name", "lora_alpha": "lora.alpha",
	"lora_r": "lora.r", "lora_rank": "lora.r", "lora_dropout": "lora.dropout", "lora_target": "lora.targets", "lora_target_modules": "lora.targets",
	"target_modules": "lora.targets", "recomputation": "train.recompute", "activation_checkpointing": "train.recompute",
}

// valueSynonyms are words that other tools have for our values.
var valueSynonyms = map[string]string{
	"gpu": "cuda", "float32": "fp32", "bfloat16": "bf16",
	"wsd": "warmup_stable_decay", "constant_with_warmup": "constant", "cosine_with_min_lr": "cosine", "cosine_with_warmup": "cosine", "linear_with_warmup": "linear",
}

// suggestValue proposes the word that is meant by one that f's enum does not have, as
// the end of a sentence. A synonym comes first: the letters of gpu are nearer to cpu.
func (f *field) suggestValue(s string) string {
	word := valueSynonyms[strings.ToLower(s)]
	if !contains(f.enum, word) {
		word = Nearest(s, f.enum)
	}
	if word == "" {
		return ""
	}
	return "; did you mean " + word + "?"
}

// suggest proposes the key that is meant by an unknown one in section s, as the
// end of a sentence. Its own section comes first, then keys of that very name
// elsewhere, other tools' names, and keys of a similar name elsewhere.
func suggest(s *field, key string) string {
	var own []string
	for _, c := range s.children {
		own = append(own, c.key)
	}
	if near := Nearest(key, own); near != "" {
		return "; did you mean " + near + "?"
	}
	if key == "<<" {
		return "; merge keys are not read"
	}
	var elsewhere []string
	byKey := map[string]string{}
	for _, f := range leaves {
		if f.key == strings.ToLower(key) {
			return "; did you mean " + f.path + "?"
		}
		if _, ok := byKey[f.key]; !ok {
			byKey[f.key] = f.path
			elsewhere = append(elsewhere, f.key)
		}
	}
	if path, ok := synonyms[strings.ToLower(strings.ReplaceAll(key, "-", "_"))]; ok {
		return "; did you mean " + path + "?"
	}
	if near := Nearest(key, elsewhere); near != "" {
		return "; did you mean " + byKey[near] + "?"
	}
	if s != root {
		return "; " + s.path + " has " + strings.Join(own, ", ")
	}
	return "; the sections are " + strings.Join(own, ", ")
}

// Nearest returns the word that takes the fewest edits to become s, if they are
// few for its length, or "".
func Nearest(s string, words []string) string {
	best, limit := "", len(s)/3+1
	if len(s) <= 3 {
		limit = 1
	}
	for _, w := range words {
		if d := editDistance(strings.ToLower(s), w); d <= limit && d < len(w) {
			best, limit = w, d-1
		}
	}
	return best
}

// editDistance counts insertions, deletions, replacements and swaps of
// neighbours that turn a into b (optimal string alignment).
func editDistance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
