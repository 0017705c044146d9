package shell

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// FuzzJoin: a real shell gets the words back.
func FuzzJoin(f *testing.F) {
	for _, word := range []string{"", "plain", "a b", `$(echo x)`, "`echo x`", "it's", `a "b" \`, "a\nb", "*", "~", "#", "-n", "!", "[ab]=c"} {
		f.Add(word, "z")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		if strings.ContainsRune(first+second, 0) {
			t.Skip("an argument ends at 0")
		}
		out, err := exec.Command("sh", "-c", `printf '%s\0' `+Join(first, second)).Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Split(string(out), "\x00"); !slices.Equal(got, []string{first, second, ""}) {
			t.Errorf("got %q, want %q and %q", got, first, second)
		}
	})
}

func TestIsPlain(t *testing.T) {
	for command, want := range map[string]bool{
		"ip link del dummy0": true, "ip link del $(reboot)": false, "ip link del `reboot`": false, "ip link del ;reboot;": false,
		"ip link del a|reboot": false, "ip link del &&reboot": false, "ip link del reboot&": false, "ip link del >file": false,
		"ip addr del 10.0.0.1/8 dev a && ip addr add 10.0.0.1/8 dev a": true, "ip link del '": false, "ip link del #": false,
		"ip link set dev eth0 alias 'twill port $x'": true, "nft chain inet fw f '{ policy accept; }'": true, "ip link del \"a": false,
	} {
		if got := IsPlain(command); got != want {
			t.Errorf("%s: got %t, want %t", command, got, want)
		}
	}
}
