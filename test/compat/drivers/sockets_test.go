package drivers

import "testing"

func TestProcAddress(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:1F90":                         "127.0.0.1:8080",
		"0000000000000000FFFF00000100007F:2678": "127.0.0.1:9848", // as Java has it
		"00000000000000000000000001000000:0050": "[::1]:80",
		"0100007F":                              "",
		"01007F:1F90":                           "",
		"0100007F:1F9000":                       "",
	} {
		got, err := procAddress(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s is read as %q, %v", text, got, err)
		}
	}
}
