#include "net/s3.h"

#include "tests/base/scratch.h"

namespace specdec::net {
namespace {

// AWS' worked example: "Signature Calculations for the Authorization Header", GET of a range.
TEST(S3, SignatureOfTheDocumentedExample) {
  S3Options options;
  options.access_key = "AKIAIOSFODNN7EXAMPLE";
  options.secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
  const std::string value =
      sign_s3(options, "GET", "/test.txt", "",
              {{"host", "examplebucket.s3.amazonaws.com"},
               {"range", "bytes=0-9"},
               {"x-amz-date", "20130524T000000Z"},
               {"x-amz-content-sha256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}});
  EXPECT_EQ(value,
            "AWS4-HMAC-SHA256 "
            "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/"
            "aws4_request,SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(S3, Locations) {
  EXPECT_EQ(parse_s3("s3://some-bucket").prefix, "");
  EXPECT_EQ(parse_s3("s3://some-bucket/a/b/").prefix, "a/b");
  for (const char* bad : {"s3://", "s3://ab", "s3://Bucket", "https://x", "s3://bucket//a", "s3://buc ket"})
    testing::expect_error(ErrorKind::kUsage, {"expected s3://bucket"}, [&] { parse_s3(bad); });
}

TEST(S3, PlainHttpToElsewhereIsRefused) {
  S3Options options;
  options.endpoint = "http://192.0.2.1:9000";
  testing::expect_error(ErrorKind::kUsage, {"expected https"}, [&] { S3Client(parse_s3("s3://bucket"), options); });
}

}  // namespace
}  // namespace specdec::net
