package main

import (
	"context"
	"errors"
	"fmt"
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
			n, err := ask(c.Context(), client.Namespaces)
			if err != nil {
				return failed(err)
			}
			if r.json {
				return failed(writeJSON(p.stdout, n))
			}
			t := newTable(p.stdout)
			t.row("ID", "NAME", "SERVICES", "MADE", "DESCRIPTION")
			for _, one := range n.Namespaces {
				made := "-"
				if one.InTable {
					made = "yes"
				}
				t.row(one.ID, one.Name, strconv.Itoa(one.Services), made, one.Description)
			}
			return failed(t.Flush())
		},
	}
	r.flags(c, false, false)
	noFiles(c)
	c.AddCommand(createNamespaceCommand(p), removeNamespaceCommand(p))
	return c
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
			n, err := ask(c.Context(), func(ctx context.Context) (*api.Namespace, error) { return client.CreateNamespace(ctx, in) })
			if err != nil {
				return failed(err)
			}
			if r.json {
				return failed(writeJSON(p.stdout, n))
			}
			fmt.Fprintf(p.stdout, "Namespace %s is made.\nUndo: starling namespaces remove %s\n", safe(n.ID), quoted(safe(n.ID)))
			return nil
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
			n, err := ask(c.Context(), func(ctx context.Context) (*api.Namespace, error) { return client.RemoveNamespace(ctx, args[0]) })
			if err != nil {
				return failed(err)
			}
			if r.json {
				return failed(writeJSON(p.stdout, n))
			}
			fmt.Fprintf(p.stdout, "Namespace %s is removed.\n", safe(n.ID))
			if n.Services > 0 {
				fmt.Fprintf(p.stdout, "%s still in it, untouched: starling services --namespace %s\n", count(n.Services, "service is", "services are"), quoted(safe(n.ID)))
			}
			undo := "starling namespaces create " + quoted(n.ID)
			if n.Name != n.ID {
				undo += " --name " + quoted(n.Name)
			}
			if n.Description != "" {
				undo += " --description " + quoted(n.Description)
			}
			fmt.Fprintf(p.stdout, "Undo: %s\n", safe(undo))
			return nil
		},
	}
	r.flags(c, false, false)
	noFiles(c)
	return c
}

func needsID(c *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return errors.New("needs one ID")
	}
	return nil
}
