// SPDX-License-Identifier: Apache-2.0
// compose FILE: what Docker Compose makes of a file, as JSON: its own loader, which judges by its
// schema, puts in the variables of the environment and refuses what does not go together.
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
