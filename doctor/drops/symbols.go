package drops

import (
	"bufio"
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
)

// symbol is a function of the kernel.
type symbol struct {
	addr uint64
	name string
}

// functionAt returns the function that contains an address, empty if it is not known.
func functionAt(all []symbol, addr uint64) string {
	i, found := slices.BinarySearchFunc(all, addr, func(s symbol, a uint64) int { return cmp.Compare(s.addr, a) })
	if !found {
		i--
	}
	if i < 0 {
		return ""
	}
	return all[i].name
}

// readSymbols reads /proc/kallsyms, "ffffffff81000000 T _text [module]". If addresses are hidden, all are zero there.
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
	slices.SortFunc(all, func(a, b symbol) int { return cmp.Compare(a.addr, b.addr) })
	return all
}
