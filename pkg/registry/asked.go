package registry

import "context"

type askedKey struct{}

// AskedBy notes in a context who asks for what is written to the log: an
// address, which the history names where an operator has changed something.
func AskedBy(ctx context.Context, who string) context.Context {
	return context.WithValue(ctx, askedKey{}, who)
}

// WhoAsked is what AskedBy has noted, or "".
func WhoAsked(ctx context.Context) string {
	who, _ := ctx.Value(askedKey{}).(string)
	return who
}
