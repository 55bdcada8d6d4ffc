package monitor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Prometheus serves the newest figures at /metrics: a gauge for each name, with
// underscores for slashes and gorun_ before it, and gorun_step. A label carries the
// run's name.
type Prometheus struct {
	registry *prometheus.Registry
	labels   prometheus.Labels
	gauges   map[string]prometheus.Gauge
	server   *http.Server
	served   chan error // what serve ended with; it closes it
	addr     net.Addr
}

// NewPrometheus listens on addr (host:port; port 0 is any free one) until Close.
func NewPrometheus(addr, run string) (*Prometheus, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("the page for Prometheus: %w", err)
	}
	p := &Prometheus{
		registry: prometheus.NewRegistry(), labels: prometheus.Labels{"run": run}, gauges: map[string]prometheus.Gauge{},
		served: make(chan error, 1), addr: l.Addr(),
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{}))
	p.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute}
	go p.serve(l)
	return p, nil
}

// serve answers requests. NewPrometheus starts it, Close ends it.
func (p *Prometheus) serve(l net.Listener) {
	err := p.server.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	p.served <- err
	close(p.served)
}

// Addr is where it listens.
func (p *Prometheus) Addr() net.Addr { return p.addr }

// Write replaces the figures.
func (p *Prometheus) Write(x Point) error {
	if err := p.set("step", "the last step that was reported", float64(x.Step)); err != nil {
		return err
	}
	for _, v := range x.Values {
		if err := p.set(strings.ReplaceAll(v.Name, "/", "_"), v.Name+" of that step", v.V); err != nil {
			return err
		}
	}
	return nil
}

func (p *Prometheus) set(name, help string, v float64) error {
	g := p.gauges[name]
	if g == nil {
		g = prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "gorun", Name: name, Help: help, ConstLabels: p.labels})
		if err := p.registry.Register(g); err != nil {
			return fmt.Errorf("the page for Prometheus: %w", err)
		}
		p.gauges[name] = g
	}
	g.Set(v)
	return nil
}

// Close lets requests that are under way end, and stops listening.
func (p *Prometheus) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	err := p.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, p.server.Close())
	}
	return errors.Join(err, <-p.served)
}
