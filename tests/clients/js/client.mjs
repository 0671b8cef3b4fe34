// SPDX-License-Identifier: Apache-2.0
// The AWS SDK for JavaScript v3 and minio-js behind the protocol of drivers.py:
// node client.mjs aws-sdk-js|minio-js ENDPOINT BUCKET PLAN.json
import { createReadStream, createWriteStream, readFileSync, writeFileSync } from "node:fs";
import { pipeline } from "node:stream/promises";
import { GetObjectCommand, S3Client, paginateListObjectsV2 } from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";
import * as minio from "minio";

const [, , name, endpoint, bucket, plan] = process.argv;
const { AWS_ACCESS_KEY_ID: accessKeyId, AWS_SECRET_ACCESS_KEY: secretAccessKey } = process.env;
const keys = { accessKeyId, secretAccessKey };

function awsSdk() {
  const s3 = new S3Client({
    endpoint, region: "us-east-1", forcePathStyle: true, credentials: keys,
  });
  const read = async (Key, file, Range) => {
    const reply = await s3.send(new GetObjectCommand({ Bucket: bucket, Key, Range }));
    await pipeline(reply.Body, createWriteStream(file));
  };
  return {
    put: (Key, file) => {
      const params = { Bucket: bucket, Key, Body: createReadStream(file) };
      return new Upload({ client: s3, params }).done();
    },
    get: (key, file) => read(key, file),
    range: (key, first, last, file) => read(key, file, `bytes=${first}-${last}`),
    ls: async (Prefix) => {
      const out = [];
      const pages = paginateListObjectsV2({ client: s3, pageSize: 3 }, { Bucket: bucket, Prefix });
      for await (const page of pages) {
        out.push(...(page.Contents ?? []).map((row) => row.Key));
      }
      return out;
    },
    missing: async (Key) => {
      try { await s3.send(new GetObjectCommand({ Bucket: bucket, Key })); } catch (error) {
        if (error.name === "NoSuchKey") return;
        throw error;
      }
      throw new Error("no NoSuchKey");
    },
  };
}

function minioJs() {
  const url = new URL(endpoint);
  const client = new minio.Client({ endPoint: url.hostname, port: Number(url.port), useSSL: false,
    accessKey: keys.accessKeyId, secretKey: keys.secretAccessKey });
  return {
    put: (key, file) => client.fPutObject(bucket, key, file),
    get: (key, file) => client.fGetObject(bucket, key, file),
    range: async (key, first, last, file) => {
      const body = await client.getPartialObject(bucket, key, first, last - first + 1);
      await pipeline(body, createWriteStream(file));
    },
    ls: async (prefix) => {
      const out = [];
      for await (const row of client.listObjectsV2(bucket, prefix, true)) out.push(row.name);
      return out;
    },
    missing: async (key) => {
      try { await client.getObject(bucket, key); } catch (error) {
        if (error.code === "NoSuchKey") return;
        throw error;
      }
      throw new Error("no NoSuchKey");
    },
  };
}

const client = name === "minio-js" ? minioJs() : awsSdk();
for (const [step, ...args] of JSON.parse(readFileSync(plan))) {
  if (step === "ls") {
    const rows = await client.ls(args[0]);
    rows.sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    writeFileSync(args[1], rows.join("\n"));
  } else {
    await client[step](...args);
  }
}
