package report

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// magnitude is |m|, also of the smallest number there is.
func magnitude(m verdict.Millis) (sign string, ms uint64) {
	if m < 0 {
		return "-", -uint64(m)
	}
	return "", uint64(m)
}

// clock is a point of time since the first disturbance: 0:07.4, 12:05.3.
func clock(m verdict.Millis) string {
	sign, ms := magnitude(m)
	return fmt.Sprintf("%s%d:%02d.%d", sign, ms/60_000, ms/1000%60, ms%1000/100)
}

// clocks is a stretch of time, to the millisecond where it is so short that
// both ends would look the same.
func clocks(from, to verdict.Millis) string {
	if to-from >= 1000 || to < from {
		return clock(from) + " to " + clock(to)
	}
	fine := func(m verdict.Millis) string {
		sign, ms := magnitude(m)
		return fmt.Sprintf("%s%d:%02d.%03d", sign, ms/60_000, ms/1000%60, ms%1000)
	}
	return fine(from) + " to " + fine(to)
}

// long is a duration: 3 ms, 7.4 s, 2 min 5 s, 1 h 2 min.
func long(m verdict.Millis) string {
	sign, ms := magnitude(m)
	switch {
	case ms < 1000:
		return fmt.Sprintf("%s%d ms", sign, ms)
	case ms < 60_000:
		return fmt.Sprintf("%s%d.%d s", sign, ms/1000, ms%1000/100)
	case ms < 3_600_000:
		if ms/1000%60 == 0 {
			return fmt.Sprintf("%s%d min", sign, ms/60_000)
		}
		return fmt.Sprintf("%s%d min %d s", sign, ms/60_000, ms/1000%60)
	}
	return fmt.Sprintf("%s%d h %d min", sign, ms/3_600_000, ms/60_000%60)
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

func was(n int) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

// list joins with commas, and "and" before the last.
func list(parts []string) string {
	if n := len(parts); n > 1 {
		return strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
	return strings.Join(parts, "")
}

// some names at most so many.
func some(names []string, most int) string {
	if len(names) > most+1 {
		return cleanAll(names[:most]) + " and " + strconv.Itoa(len(names)-most) + " more"
	}
	return cleanAll(names)
}

func cleanAll(names []string) string {
	cleaned := make([]string, len(names))
	for i, n := range names {
		cleaned[i] = clean(n)
	}
	return strings.Join(cleaned, ", ")
}

// clean is printable text that is not endless.
func clean(s string) string { return shown(s, 300) }

// printable makes what comes from outside harmless for a terminal and for the
// order of the text around it: what cannot be printed is written as an escape.
func printable(s string) string { return shown(s, len(s)*10) }

func shown(s string, most int) string {
	odd := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	if len(s) <= most && strings.IndexFunc(s, odd) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if b.Len() >= most {
			b.WriteString("…")
			break
		}
		if odd(r) {
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// natural orders names as people do: go-9 before go-10.
func natural(a, b string) int {
	x, y := a, b
	for x != "" && y != "" {
		i, j := digits(x), digits(y)
		if i > 0 && j > 0 {
			m, n := strings.TrimLeft(x[:i], "0"), strings.TrimLeft(y[:j], "0")
			if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
				return c
			}
			x, y = x[i:], y[j:]
			continue
		}
		if x[0] != y[0] {
			return cmp.Compare(x[0], y[0])
		}
		x, y = x[1:], y[1:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(a, b))
}

func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}

// rate is a number of bytes a second.
func rate(n int64) string {
	switch {
	case n >= 1_000_000:
		return strconv.FormatFloat(float64(n)/1e6, 'g', 3, 64) + " MB/s"
	case n >= 1000:
		return strconv.FormatFloat(float64(n)/1e3, 'g', 3, 64) + " kB/s"
	}
	return strconv.FormatInt(n, 10) + " B/s"
}
