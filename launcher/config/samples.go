package config

// Samples says that the data is of samples, which a tokenizer makes of text.
func (d *Data) Samples(m Model) bool {
	return d.Rows() || d.Format == "text" && d.tokenizes(m)
}

// Rows says that the data is of files of rows.
func (d *Data) Rows() bool {
	return d.Format != "text" && d.Format != "tokens" && d.Format != "synthetic" && !d.Images()
}

// tokenizes says that text becomes tokens by a tokenizer's files, not by its bytes.
func (d *Data) tokenizes(m Model) bool {
	return d.Tokenizer != "bytes" && (d.Tokenizer != "" || m.Path != "")
}

// readsBytes says that the tokens are the bytes of text.
func (d *Data) readsBytes(m Model) bool {
	return d.Format != "tokens" && d.Format != "synthetic" && !d.Images() && !d.tokenizes(m)
}

// checkSamples refuses what is for samples where there are none, and settings of
// samples that do not go together.
func (c *Config) checkSamples(ps *problems) {
	d := &c.Data
	refuse := func(why string, keys ...string) {
		for _, key := range keys {
			if c.differs(key) {
				ps.add(key+" data.format", "%s: %s; leave the key out", show(lookup(key).in(c)), why)
			}
		}
	}
	var fields []string
	for _, f := range root.child("data").child("fields").children {
		fields = append(fields, f.path)
	}
	switch {
	case d.Format == "tokens" || d.Format == "synthetic" || d.Images():
		refuse("this is for text and rows, and data.format is "+d.Format, "data.tokenizer")
		fallthrough
	case !d.Samples(c.Model):
		refuse("this is for samples (rows, or text with a tokenizer)", "data.weights", "data.truncation", "data.bad_rows", "data.cache")
	default:
		refuse("files of samples are read as a whole", "data.max_bytes")
	}
	switch {
	case !d.Rows():
		refuse("this is for rows, and data.format is "+d.Format, append(fields, "data.train_on", "data.template")...)
	case d.Format == "mixed":
		refuse("rows of data.format mixed are told by the names of their fields", fields...)
	case d.Format == "text_rows":
		refuse("all of a text is learned", "data.train_on")
	}
	if d.Template == "none" && (d.Format == "chat" || d.Format == "sharegpt") {
		ps.add("data.template data.format", "none: data.format %s cannot be read without one", d.Format)
	}
	if d.Samples(c.Model) && len(d.Weights) > 0 {
		most := 0.0
		for _, w := range d.Weights {
			most = max(most, w)
		}
		if len(d.Weights) != len(d.Train) {
			ps.add("data.weights data.train", "has %d numbers, and data.train %d entries: each entry has its weight", len(d.Weights), len(d.Train))
		} else if most == 0 {
			ps.add("data.weights", "leaves nothing to train on")
		}
	}
	if d.Samples(c.Model) && d.Packing && c.Model.Path == "" && c.Model.Arch == "gpt2" {
		ps.add("data.packing model.arch", "gpt2's learned positions tell where in its sequence a sample lies: give packing: false")
	}
}

// differs says that a key has another value than its default.
func (c *Config) differs(key string) bool {
	return show(lookup(key).in(c)) != show(lookup(key).in(defaults()))
}

// defaults is a configuration that gives no key.
func defaults() *Config {
	c := new(Config)
	setDefaults(c)
	return c
}
