package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
)

func namespacesCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	c := &cobra.Command{
		Use:   "namespaces",
		Short: "List, make and remove namespaces",
		Long: `List the namespaces: public, those that somebody has made, and those that services are
in. A namespace works without being made; making one gives it a name for people.`,
		Example: `  starling namespaces
  starling namespaces create prod --name Production
  starling namespaces remove prod`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			return failed(show(c.Context(), r, client.Namespaces, writeNamespaces))
		},
	}
	r.flags(c, false, false)
	noFiles(c)
	c.AddCommand(createNamespaceCommand(p), removeNamespaceCommand(p))
	return c
}

func writeNamespaces(w io.Writer, n *api.Namespaces) error {
	t := newTable(w)
	t.row("ID", "NAME", "SERVICES", "MADE", "DESCRIPTION")
	for _, one := range n.Namespaces {
		made := "-"
		if one.InTable {
			made = "yes"
		}
		t.row(one.ID, one.Name, strconv.Itoa(one.Services), made, one.Description)
	}
	return t.Flush()
}

func createNamespaceCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	var in api.NamespaceRequest
	c := &cobra.Command{
		Use:   "create ID",
		Short: "Make a namespace",
		Long: `Make a namespace, so that it is listed before services are in it, with a name and a
description for people. ID is what clients are configured with: up to 64 letters,
digits, - and _.`,
		Example: `  starling namespaces create prod --name Production --description 'customers see it'`,
		Args:    needsID, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			in.ID = args[0]
			return failed(show(c.Context(), r, func(ctx context.Context) (*api.Namespace, error) { return client.CreateNamespace(ctx, in) }, func(w io.Writer, n *api.Namespace) error {
				_, err := fmt.Fprintf(w, "Namespace %s is made.\nUndo: starling namespaces remove %s\n", safe(n.ID), quoted(safe(n.ID)))
				return err
			}))
		},
	}
	r.flags(c, false, false)
	c.Flags().StringVar(&in.Name, "name", "", "name for people (default ID)")
	c.Flags().StringVar(&in.Description, "description", "", "what it is for")
	noFiles(c)
	return c
}

func removeNamespaceCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	c := &cobra.Command{
		Use:   "remove ID",
		Short: "Forget a namespace that somebody has made",
		Long: `Forget the name and the description of a namespace. The services in it stay as they
are, and with them it is still listed.`,
		Example: `  starling namespaces remove prod`,
		Args:    needsID, ValidArgsFunction: r.completeMade,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			return failed(show(c.Context(), r, func(ctx context.Context) (*api.Namespace, error) { return client.RemoveNamespace(ctx, args[0]) }, writeRemovedNamespace))
		},
	}
	r.flags(c, false, false)
	noFiles(c)
	return c
}

func writeRemovedNamespace(w io.Writer, n *api.Namespace) error {
	lines := []string{"Namespace " + n.ID + " is removed."}
	if n.Services > 0 {
		lines = append(lines, fmt.Sprintf("%s still in it, untouched: starling services --namespace %s", count(n.Services, "service is", "services are"), quoted(n.ID)))
	}
	undo := "Undo: starling namespaces create " + quoted(n.ID)
	if n.Name != n.ID {
		undo += " --name " + quoted(n.Name)
	}
	if n.Description != "" {
		undo += " --description " + quoted(n.Description)
	}
	for _, line := range append(lines, undo) {
		if _, err := fmt.Fprintln(w, safe(line)); err != nil {
			return err
		}
	}
	return nil
}

func needsID(c *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return errors.New("needs one ID")
	}
	return nil
}
