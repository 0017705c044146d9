package script

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/facts"
)

func (r *run) doctor() verb {
	var probe bool
	return verb{
		args:    "[-probe] NODE [FINDING]",
		least:   1,
		summary: "the doctor's first finding on a node must be FINDING, or there must be none",
		detail:  []string{"-probe also sends what takes longer. Documentation/findings.md describes every finding."},
		flags:   func(fs *flag.FlagSet) { fs.BoolVar(&probe, "probe", false, "") },
		do: func(c *call) error {
			how := doctor.PeerProbes
			if probe {
				how = doctor.AllProbes
			}
			found, err := r.examine(c, c.args[0], how)
			if err != nil {
				return err
			}
			if err := found.WriteText(&c.out); err != nil {
				return err
			}
			var ids []string
			for _, f := range found.Findings {
				ids = append(ids, f.ID)
			}
			switch {
			case len(c.args) == 1 && len(ids) > 0:
				return fmt.Errorf("the doctor finds %s on %s: want nothing", strings.Join(ids, ", "), c.args[0])
			case len(c.args) == 1:
			case len(ids) == 0:
				return fmt.Errorf("the doctor finds nothing on %s: want %s", c.args[0], c.args[1])
			case ids[0] != c.args[1]:
				return fmt.Errorf(
					"the doctor finds %s on %s: want %s first",
					strings.Join(ids, ", "),
					c.args[0],
					c.args[1],
				)
			}
			return nil
		},
	}
}

// examine looks at a node as twillctl doctor --lab does.
func (r *run) examine(c *call, node string, probe doctor.Probing) (doctor.Diagnosis, error) {
	n, err := r.node(node)
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	o := facts.Options{Checkpoint: n.CheckpointFile(), SubnetFile: n.SubnetFile(), CNIDir: n.Dir(),
		BinDir: filepath.Dir(r.lab.Spec().Programs.Plugin), CNICache: n.CNICache(), Probe: probe}
	began := time.Now()
	var f doctor.Facts
	err = n.Do(func() (err error) {
		f, err = facts.Gather(c.ctx, o)
		return err
	})
	return doctor.Diagnose(f, time.Since(began)), err
}
