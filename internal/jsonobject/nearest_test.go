package jsonobject

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"Type", "VNI", "Port", "MTU", "SubnetLen", "SubnetMin", "PersistentKeepaliveInterval", "EnableIPv6"}
	for word, want := range map[string]string{
		"Prot": "Port", "port": "Port", "Ports": "Port", "VIN": "VNI", "SubnetLength": "SubnetLen", "SubnetMni": "SubnetMin",
		"PersistentKeepalive": "PersistentKeepaliveInterval", "EnableIPv": "EnableIPv6",
		"": "", "Foo": "", "X": "", "Color": "", "SubnetMask": "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
}

// TestHint: the keys that were asked for are the known ones, as they were spelt then.
func TestHint(t *testing.T) {
	o, err := Parse([]byte(`{"Prot": 1, "subnetlne": 2, "Else": 3}`))
	if err != nil {
		t.Fatal(err)
	}
	var port int
	if _, err := o.Get("Port", &port, "a number"); err != nil || port != 0 {
		t.Fatal(port, err)
	}
	for key, want := range map[string]string{"Prot": ": did you mean Port?", "subnetlne": ": did you mean SubnetLen?", "Else": ""} {
		if got := o.Hint(key, "SubnetLen"); got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
}
