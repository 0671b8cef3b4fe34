// SPDX-License-Identifier: Apache-2.0
// The AWS SDK for Java v2 behind the protocol of drivers.py: the synchronous client, the transfer
// manager, and the CRT client: Client java-sync|java-tm|java-crt ENDPOINT BUCKET PLAN.json
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletionException;
import java.util.stream.Collectors;
import software.amazon.awssdk.core.async.AsyncRequestBody;
import software.amazon.awssdk.core.async.AsyncResponseTransformer;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3AsyncClient;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.GetObjectRequest;
import software.amazon.awssdk.services.s3.model.NoSuchKeyException;
import software.amazon.awssdk.services.s3.model.S3Exception;
import software.amazon.awssdk.services.s3.model.S3Object;
import software.amazon.awssdk.transfer.s3.S3TransferManager;

public class Client {
    interface Driver {
        void put(String key, Path file) throws Exception;

        void get(String key, Path file, String range) throws Exception;
    }

    static S3Client sync;
    static String bucket;

    static GetObjectRequest request(String key, String range) {
        return GetObjectRequest.builder().bucket(bucket).key(key).range(range).build();
    }

    static Driver asyncDriver(S3AsyncClient s3) {
        return new Driver() {
            public void put(String key, Path file) {
                AsyncRequestBody body = AsyncRequestBody.fromFile(file);
                s3.putObject(b -> b.bucket(bucket).key(key), body).join();
            }

            public void get(String key, Path file, String range) {
                s3.getObject(request(key, range), AsyncResponseTransformer.toFile(file)).join();
            }
        };
    }

    static Driver driver(String name, URI endpoint) {
        if (name.equals("java-crt")) {
            return asyncDriver(S3AsyncClient.crtBuilder().endpointOverride(endpoint)
                .region(Region.US_EAST_1).forcePathStyle(true).build());
        }
        if (name.equals("java-tm")) {
            S3AsyncClient s3 = S3AsyncClient.builder().endpointOverride(endpoint)
                .region(Region.US_EAST_1).forcePathStyle(true).multipartEnabled(true).build();
            S3TransferManager manager = S3TransferManager.builder().s3Client(s3).build();
            return new Driver() {
                public void put(String key, Path file) {
                    manager.uploadFile(b -> b.putObjectRequest(p -> p.bucket(bucket).key(key))
                        .source(file)).completionFuture().join();
                }

                public void get(String key, Path file, String range) {
                    if (range != null) {
                        s3.getObject(request(key, range),
                            AsyncResponseTransformer.toFile(file)).join();
                        return;
                    }
                    manager.downloadFile(b -> b.getObjectRequest(request(key, null))
                        .destination(file)).completionFuture().join();
                }
            };
        }
        return new Driver() {
            public void put(String key, Path file) {
                sync.putObject(b -> b.bucket(bucket).key(key), file);
            }

            public void get(String key, Path file, String range) {
                sync.getObject(request(key, range), file);
            }
        };
    }

    public static void main(String[] args) throws Exception {
        URI endpoint = URI.create(args[1]);
        bucket = args[2];
        sync = S3Client.builder().endpointOverride(endpoint).region(Region.US_EAST_1)
            .forcePathStyle(true).build();
        Driver driver = driver(args[0], endpoint);
        for (JsonNode step : new ObjectMapper().readTree(Path.of(args[3]).toFile())) {
            String key = step.get(1).asText();
            switch (step.get(0).asText()) {
                case "put" -> driver.put(key, Path.of(step.get(2).asText()));
                case "get" -> driver.get(key, Path.of(step.get(2).asText()), null);
                case "range" -> driver.get(key, Path.of(step.get(4).asText()),
                    "bytes=" + step.get(2).asLong() + "-" + step.get(3).asLong());
                case "ls" -> {
                    List<String> keys = new ArrayList<>();
                    for (S3Object row : sync.listObjectsV2Paginator(
                            b -> b.bucket(bucket).prefix(key).maxKeys(3)).contents()) {
                        keys.add(row.key());
                    }
                    Files.writeString(Path.of(step.get(2).asText()),
                        keys.stream().sorted().collect(Collectors.joining("\n")));
                }
                case "missing" -> {
                    try {
                        driver.get(key, Files.createTempDirectory("x").resolve("y"), null);
                        throw new IllegalStateException("no NoSuchKey");
                    } catch (NoSuchKeyException expected) {
                        continue;
                    } catch (CompletionException error) {
                        if (!(error.getCause() instanceof S3Exception failed)
                                || failed.statusCode() != 404) {
                            throw error;
                        }
                    }
                }
                default -> throw new IllegalArgumentException(step.toString());
            }
        }
        System.exit(0);
    }
}
