package monitor

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// Curve is a line of a plot.
type Curve struct {
	Name   string
	Points []XY
}

// XY is a point of a Curve: a step and its figure.
type XY struct {
	Step int
	Y    float64
}

// colours tell curves apart, also for those who see few.
var colours = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
}

// Plot writes a PNG with the curves over the steps to path, as a whole or not at all.
// Points that are not finite are left out, and so is a curve without points.
func Plot(path, title, figure string, curves []Curve) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "step", figure
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	for i, c := range curves {
		var points plotter.XYs
		for _, x := range c.Points {
			if !math.IsNaN(x.Y) && !math.IsInf(x.Y, 0) {
				points = append(points, plotter.XY{X: float64(x.Step), Y: x.Y})
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return fmt.Errorf("plot of %s: %w", c.Name, err)
		}
		line.Color, line.Width = colours[i%len(colours)], vg.Points(1.5)
		p.Add(line)
		p.Legend.Add(c.Name, line)
		if len(points) < 50 { // a few would not show as a line
			dots.Color, dots.Radius = line.Color, vg.Points(2)
			p.Add(dots)
		}
	}
	w, err := p.WriterTo(8*vg.Inch, 5*vg.Inch, "png")
	if err != nil {
		return err
	}
	var png bytes.Buffer
	if _, err := w.WriteTo(&png); err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, png.Bytes(), 0o666); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
