package script

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twill-net/twill/internal/host"
)

// stream is a ping that goes on while the script does, with named moments.
type stream struct {
	*host.Stream
	marks map[string]host.Mark
}

func (r *run) streamVerbs() map[string]func() verb {
	return map[string]func() verb{"stream": r.stream, "mark": r.mark, "lost": r.lost}
}

func (r *run) stream() verb {
	return verb{
		args:    "NAME FROM TO",
		least:   3,
		summary: "ping 100 times a second from now on",
		do: func(c *call) error {
			from, err := r.find(c.args[1])
			if err != nil {
				return err
			}
			to, err := r.to(c.args[2], r.family(false))
			if err != nil {
				return err
			}
			s, err := from.Stream(to, 10*time.Millisecond)
			if err != nil {
				return err
			}
			r.streams[c.args[0]] = &stream{s, map[string]host.Mark{}}
			return nil
		},
	}
}

func (r *run) findStream(name string) (*stream, error) {
	if s, ok := r.streams[name]; ok {
		return s, nil
	}
	return nil, fmt.Errorf("there is no stream %q: begin one with the command stream", name)
}

func (r *run) mark() verb {
	return verb{args: "STREAM MARK", least: 2, summary: "remember this moment of a stream", do: func(c *call) error {
		s, err := r.findStream(c.args[0])
		if err == nil {
			s.marks[c.args[1]] = s.Mark()
		}
		return err
	}}
}

func (r *run) lost() verb {
	return verb{
		args:    "STREAM MARK MARK MOST",
		least:   4,
		summary: "no more than MOST packets of a stream may be lost between two marks",
		do: func(c *call) error {
			s, err := r.findStream(c.args[0])
			if err != nil {
				return err
			}
			from, ok := s.marks[c.args[1]]
			to, okTo := s.marks[c.args[2]]
			most, err := strconv.Atoi(c.args[3])
			if !ok || !okTo || err != nil || to < from {
				return fmt.Errorf(
					"lost %v: want two marks of the stream, the earlier one first, and a number",
					c.args,
				)
			}
			loss, err := s.Between(c.ctx, from, to)
			c.printf("%v\n", loss)
			if loss.Lost > most || loss.Sent == 0 {
				return errors.Join(fmt.Errorf("%v: want %d at most", loss, most), err)
			}
			return nil
		},
	}
}
