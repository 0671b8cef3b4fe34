// SPDX-License-Identifier: Apache-2.0

// The AWS SDK for Go v2 and minio-go behind the protocol of drivers.py:
// client aws-sdk-go|minio-go ENDPOINT BUCKET PLAN.json
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"sort"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

type client interface {
	put(key, file string) error
	get(key, file, byteRange string) error
	ls(prefix string) ([]string, error)
	missing(key string) error
}

var ctx = context.Background()

func save(body io.ReadCloser, file string) error {
	defer body.Close()
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, body); err != nil {
		return err
	}
	return out.Close()
}

type awsClient struct {
	s3     *s3.Client
	bucket string
}

func (c awsClient) put(key, file string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = c.s3.PutObject(ctx, &s3.PutObjectInput{Bucket: &c.bucket, Key: &key, Body: in})
	return err
}

func (c awsClient) get(key, file, byteRange string) error {
	input := &s3.GetObjectInput{Bucket: &c.bucket, Key: &key}
	if byteRange != "" {
		input.Range = &byteRange
	}
	reply, err := c.s3.GetObject(ctx, input)
	if err != nil {
		return err
	}
	return save(reply.Body, file)
}

func (c awsClient) ls(prefix string) ([]string, error) {
	var out []string
	pages := s3.NewListObjectsV2Paginator(c.s3, &s3.ListObjectsV2Input{Bucket: &c.bucket,
		Prefix: &prefix, MaxKeys: aws.Int32(3)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, row := range page.Contents {
			out = append(out, *row.Key)
		}
	}
	return out, nil
}

func (c awsClient) missing(key string) error {
	_, err := c.s3.GetObject(ctx, &s3.GetObjectInput{Bucket: &c.bucket, Key: &key})
	var want *types.NoSuchKey
	if errors.As(err, &want) {
		return nil
	}
	return fmt.Errorf("not NoSuchKey: %v", err)
}

type minioClient struct {
	minio  *minio.Client
	bucket string
}

func (c minioClient) put(key, file string) error {
	_, err := c.minio.FPutObject(ctx, c.bucket, key, file, minio.PutObjectOptions{})
	return err
}

func (c minioClient) get(key, file, byteRange string) error {
	options := minio.GetObjectOptions{}
	if byteRange != "" {
		options.Set("Range", byteRange)
	}
	body, err := c.minio.GetObject(ctx, c.bucket, key, options)
	if err != nil {
		return err
	}
	return save(body, file)
}

func (c minioClient) ls(prefix string) ([]string, error) {
	var out []string
	for row := range c.minio.ListObjects(ctx, c.bucket, minio.ListObjectsOptions{Prefix: prefix,
		Recursive: true, MaxKeys: 3}) {
		if row.Err != nil {
			return nil, row.Err
		}
		out = append(out, row.Key)
	}
	return out, nil
}

func (c minioClient) missing(key string) error {
	_, err := c.minio.StatObject(ctx, c.bucket, key, minio.StatObjectOptions{})
	if minio.ToErrorResponse(err).Code == "NoSuchKey" {
		return nil
	}
	return fmt.Errorf("not NoSuchKey: %v", err)
}

func run() error {
	name, endpoint, bucket, plan := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	var c client
	if name == "minio-go" {
		where, err := url.Parse(endpoint)
		if err != nil {
			return err
		}
		made, err := minio.New(where.Host, &minio.Options{Creds: credentials.NewEnvAWS()})
		if err != nil {
			return err
		}
		c = minioClient{made, bucket}
	} else {
		settings, err := config.LoadDefaultConfig(ctx, config.WithRegion("us-east-1"))
		if err != nil {
			return err
		}
		c = awsClient{s3.NewFromConfig(settings, func(o *s3.Options) {
			o.BaseEndpoint = &endpoint
			o.UsePathStyle = true
		}), bucket}
	}
	text, err := os.ReadFile(plan)
	if err != nil {
		return err
	}
	var steps [][]any
	if err = json.Unmarshal(text, &steps); err != nil {
		return err
	}
	for _, step := range steps {
		text := func(i int) string { return fmt.Sprint(step[i]) }
		switch step[0] {
		case "put":
			err = c.put(text(1), text(2))
		case "get":
			err = c.get(text(1), text(2), "")
		case "range":
			err = c.get(text(1), text(4), fmt.Sprintf("bytes=%.0f-%.0f", step[2], step[3]))
		case "ls":
			var rows []string
			rows, err = c.ls(text(1))
			if err == nil {
				sort.Strings(rows)
				err = os.WriteFile(text(2), []byte(strings.Join(rows, "\n")), 0o644)
			}
		case "missing":
			err = c.missing(text(1))
		}
		if err != nil {
			return fmt.Errorf("%v: %w", step, err)
		}
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
