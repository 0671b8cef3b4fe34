// SPDX-License-Identifier: Apache-2.0

// Applies a MutatingAdmissionPolicy to pods with the API server's own compiler and patcher for
// CEL, without a server. Standard input is {"version": "1.32", "policy": POLICY, "pods": [POD,
// ...]}: the version whose functions of CEL there are. Standard output has a line for each pod:
// what became of it, or {"error": "..."}; "null" if the policy's conditions do not hold for it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

type variable struct{ name, expression string }

func (v variable) GetName() string          { return v.name }
func (v variable) GetExpression() string    { return v.expression }
func (v variable) ReturnTypes() []*cel.Type { return []*cel.Type{cel.AnyType, cel.DynType} }

type condition struct{ expression string }

func (c condition) GetExpression() string    { return c.expression }
func (c condition) ReturnTypes() []*cel.Type { return []*cel.Type{cel.BoolType} }

var podKind = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}

type evaluator struct {
	compiler   *plugincel.CompositedCompiler
	conditions plugincel.ConditionEvaluator
	patchers   []patch.Patcher
}

func compile(policy *admissionv1.MutatingAdmissionPolicy, of string) (*evaluator, error) {
	base := environment.MustBaseEnvSet(version.MustParseGeneric(of))
	compiler, err := plugincel.NewCompositedCompiler(base)
	if err != nil {
		return nil, err
	}
	plain := plugincel.OptionalVariableDeclarations{}
	for _, v := range policy.Spec.Variables {
		compiled := compiler.CompileAndStoreVariable(
			variable{v.Name, v.Expression}, plain, environment.NewExpressions)
		if compiled.Error != nil {
			return nil, fmt.Errorf("variable %s: %s", v.Name, compiled.Error.Detail)
		}
	}
	e := &evaluator{compiler: compiler}
	var conditions []plugincel.ExpressionAccessor
	for _, c := range policy.Spec.MatchConditions {
		conditions = append(conditions, condition{c.Expression})
	}
	e.conditions = compiler.CompileCondition(conditions, plain, environment.NewExpressions)
	if errs := e.conditions.CompilationErrors(); len(errs) > 0 {
		return nil, errs[0]
	}
	for _, m := range policy.Spec.Mutations {
		if m.PatchType != admissionv1.PatchTypeJSONPatch {
			return nil, fmt.Errorf("only JSONPatch is known here")
		}
		compiled := compiler.CompileMutatingEvaluator(
			&patch.JSONPatchCondition{Expression: m.JSONPatch.Expression},
			plugincel.OptionalVariableDeclarations{HasPatchTypes: true}, environment.NewExpressions)
		if errs := compiled.CompilationErrors(); len(errs) > 0 {
			return nil, errs[0]
		}
		e.patchers = append(e.patchers, patch.NewJSONPatcher(compiled))
	}
	return e, nil
}

func (e *evaluator) admit(pod *unstructured.Unstructured) (runtime.Object, error) {
	resource := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	var result runtime.Object = pod
	for _, patcher := range e.patchers {
		attributes := &admission.VersionedAttributes{
			Attributes: admission.NewAttributesRecord(result, nil, podKind, pod.GetNamespace(),
				pod.GetName(), resource, "", admission.Create, &metav1.CreateOptions{}, false, nil),
			VersionedObject: admission.NewLazyObject(result), VersionedKind: podKind}
		ctx := e.compiler.CreateContext(context.Background())
		request := plugincel.CreateAdmissionRequest(attributes.Attributes,
			metav1.GroupVersionResource(resource), metav1.GroupVersionKind(podKind))
		held, _, err := e.conditions.ForInput(ctx, attributes, request,
			plugincel.OptionalVariableBindings{}, nil,
			celconfig.RuntimeCELCostBudgetMatchConditions)
		if err != nil {
			return nil, err
		}
		for _, h := range held {
			if h.Error != nil {
				return nil, h.Error
			}
			if h.EvalResult.Value() != true {
				return nil, nil
			}
		}
		result, err = patcher.Patch(ctx, patch.Request{
			MatchedResource:     resource,
			VersionedAttributes: attributes,
			ObjectInterfaces:    admission.NewObjectInterfacesFromScheme(runtime.NewScheme()),
		}, celconfig.RuntimeCELCostBudget)
		if err != nil {
			return nil, err
		}
	}
	return result, nil
}

func main() {
	var input struct {
		Version string
		Policy  admissionv1.MutatingAdmissionPolicy
		Pods    []map[string]interface{}
	}
	if err := json.NewDecoder(os.Stdin).Decode(&input); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	e, err := compile(&input.Policy, input.Version)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	out := json.NewEncoder(os.Stdout)
	for _, pod := range input.Pods {
		made, err := e.admit(&unstructured.Unstructured{Object: pod})
		if err != nil {
			_ = out.Encode(map[string]string{"error": err.Error()})
			continue
		}
		_ = out.Encode(made)
	}
}
