package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"github.com/twill-net/twill/internal/host"
)

// Removed is what there was of a lab that was removed.
type Removed struct {
	Found bool
	Torn  error // why state.json could not be read, nil if it could or was not there
}

// Down removes a lab, also a broken one: its processes, namespaces and files. Dir may be empty.
func Down(dir, name string) (Removed, error) {
	spec := Spec{Dir: dir, Name: name}.withDefaults()
	if !validName.MatchString(spec.Name) {
		return Removed{}, spec.check()
	}
	if err := needsRoot(); err != nil {
		return Removed{}, err
	}
	unlock, err := lock(spec)
	if err != nil {
		return Removed{}, err
	}
	defer unlock()
	return newLab(spec, nil).remove()
}

// Down removes the lab.
func (l *Lab) Down() error {
	unlock, err := lock(l.spec)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = l.remove()
	return err
}

// remove ends the processes that carry the lab's mark and removes the rest by name: a crash can have left more
// processes and namespaces than state.json tells of, and half of that file.
func (l *Lab) remove() (Removed, error) {
	st, err := readState(l.dir)
	r := Removed{Found: !errors.Is(err, fs.ErrNotExist)}
	if r.Found {
		r.Torn = err
	}
	processes, err := host.FindMarked(l.mark())
	errs := []error{err}
	for _, p := range processes {
		r.Found = true
		errs = append(errs, p.Kill())
	}
	hosts, err := l.hosts(st)
	errs = append(errs, err)
	for _, h := range hosts {
		r.Found = true
		errs = append(errs, h.Delete())
	}
	errs = append(errs, l.unmountBPF())
	if err := errors.Join(errs...); err != nil {
		return r, fmt.Errorf("remove lab %s: %w", l.spec.Name, err)
	}
	return r, os.RemoveAll(l.dir)
}

// hosts are the namespaces that carry names of this lab, whether the state tells of them or not: each node has a
// directory, too.
func (l *Lab) hosts(st state) ([]host.Host, error) {
	entries, err := os.ReadDir(host.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	names := append([]string{"node[0-9]+"}, st.Spec.Names...)
	dirs, _ := os.ReadDir(l.dir) // without it there are no nodes either
	for _, d := range dirs {
		if validName.MatchString(d.Name()) {
			names = append(names, d.Name())
		}
	}
	ours := regexp.MustCompile(
		"^" + l.spec.Name + `-(underlay|outside|(` + strings.Join(names, "|") + `)(-[a-z0-9]+)?)$`,
	)
	var hosts []host.Host
	for _, e := range entries {
		if ours.MatchString(e.Name()) {
			hosts = append(hosts, host.Host{Name: e.Name()})
		}
	}
	return hosts, nil
}

// List is the names of all labs in dir, which may be empty.
func List(dir string) ([]string, error) {
	spec := Spec{Dir: dir}.withDefaults()
	entries, err := os.ReadDir(spec.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
