// SPDX-License-Identifier: Apache-2.0
// compose FILE: prints a compose file as JSON, as Docker Compose's own loader reads it. The loader
// judges by its schema, inserts variables of the environment, and refuses contradictions.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

func load(path string) ([]byte, error) {
	environment := types.Mapping{}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		environment[name] = value
	}
	project, err := loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir:  filepath.Dir(path),
		ConfigFiles: []types.ConfigFile{{Filename: path}},
		Environment: environment,
	})
	if err != nil {
		return nil, err
	}
	return project.MarshalJSON()
}

func main() {
	text, err := load(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "compose:", err)
		os.Exit(1)
	}
	fmt.Println(string(text))
}
