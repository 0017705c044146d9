package drops

import (
	"bufio"
	"os"
	"slices"
	"strconv"
	"strings"
)

// symbols are the kernel's functions by their addresses, read when the first is asked for.
type symbols struct {
	read bool
	all  []symbol
}

type symbol struct {
	addr uint64
	name string
}

// name is the function that an address of code is in.
func (s *symbols) name(addr uint64) string {
	if !s.read {
		s.read, s.all = true, readSymbols()
	}
	i, found := slices.BinarySearchFunc(s.all, addr, func(s symbol, a uint64) int {
		switch {
		case s.addr < a:
			return -1
		case s.addr > a:
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	if i < 0 || i >= len(s.all) {
		return ""
	}
	return s.all[i].name
}

// readSymbols reads /proc/kallsyms: "ffffffff81000000 T _text [module]". Where addresses are hidden all are zero.
func readSymbols() []symbol {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil
	}
	defer f.Close()
	var all []symbol
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || !strings.ContainsAny(fields[1], "tTwW") {
			continue
		}
		if addr, err := strconv.ParseUint(fields[0], 16, 64); err == nil && addr != 0 {
			all = append(all, symbol{addr, fields[2]})
		}
	}
	slices.SortFunc(all, func(a, b symbol) int {
		if a.addr < b.addr {
			return -1
		}
		return 1
	})
	return all
}
