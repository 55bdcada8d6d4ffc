package compress

// Stats are sums over all reductions so far.
type Stats struct {
	Sent  int64 // bytes that this rank sent
	Plain int64 // what it would have sent without compression
	// Given is the sum of the squares of what this rank had to send: its gradients and
	// what earlier steps had left. Lost is that of what it left behind. Reductions whose
	// gradients are not finite do not count. In a GPU's memory both are of a sample, the
	// first 4096 elements of each bucket.
	Given, Lost float64
}

// Stats tells how it went, up to the place that the stream has reached. It may be called
// from any goroutine. Of a GPU's memory it sees the last reduction of each bucket, so it
// is called once the host has waited for that, and before the next.
func (c *Compressor) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h, is := c.scheme.(half); is {
		h.look(c)
	}
	return c.stats
}

// measure counts a reduction's squares.
func (c *Compressor) measure(given, lost float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(given, lost)
}

// add is measure where mu is held.
func (c *Compressor) add(given, lost float64) {
	if given-given == 0 && lost-lost == 0 {
		c.stats.Given += given
		c.stats.Lost += lost
	}
}
