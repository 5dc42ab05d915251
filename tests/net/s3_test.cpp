#include "net/s3.h"

#include <mutex>

#include "tests/base/scratch.h"
#include "tests/net/toy_server.h"

namespace specdec::net {
namespace {

// AWS's worked example: "Signature Calculations for the Authorization Header", GET of a byte range.
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

// A bucket with at most one object. Conditional writes of the object get the given statuses first, then the correct
// one.
class Bucket {
 public:
  explicit Bucket(std::vector<int> answers, bool has_object = false)
      : answers_(std::move(answers)), has_object_(has_object) {}
  S3Client client() const {
    S3Options options;
    options.endpoint = server_.url();
    options.access_key = "a";
    options.secret_key = "s";
    options.backoff.max_attempts = 3;
    options.backoff.sleep = [](double) {};
    return S3Client(parse_s3("s3://bucket"), options);
  }
  bool has_object() const { return has_object_; }
  std::vector<std::string> asked;

 private:
  ToyReply answer(const ToyRequest& r) {
    const std::lock_guard lock(mutex_);
    const bool conditional = r.head.find("if-none-match: *") != std::string::npos;
    asked.push_back(r.method + (conditional ? " if absent" : ""));
    if (r.method == "HEAD") return {has_object_ ? 200 : 404, has_object_ ? "x" : "", ""};
    if (conditional && !answers_.empty()) {
      const int status = answers_.front();
      answers_.erase(answers_.begin());
      return {status, "<Error><Code>ConditionalRequestConflict</Code></Error>", location_};
    }
    if (conditional && has_object_) return {412, "", ""};
    has_object_ = true;
    return {200, "", ""};
  }

  std::mutex mutex_;
  std::vector<int> answers_;
  bool has_object_;
  const std::string location_ = "Location: https://bucket.s3.eu-west-9.amazonaws.com/manifest.json\r\n";
  ToyServer server_{[this](const ToyRequest& r) { return answer(r); }};
};

// AWS answers 409 while another request for the object is in progress, so 409 does not mean that the object exists.
TEST(S3, AConflictIsTriedAgainAndIsNoObject) {
  Bucket bucket({409});
  EXPECT_TRUE(bucket.client().put("manifest.json", "x", true));
  EXPECT_TRUE(bucket.has_object());
  EXPECT_EQ(bucket.asked, (std::vector<std::string>{"PUT if absent", "PUT if absent"}));
  Bucket stubborn({409, 409, 409});
  testing::expect_error(ErrorKind::kNetwork, {"manifest.json", "409", "ConditionalRequestConflict"},
                        [&] { stubborn.client().put("manifest.json", "x", true); });
  EXPECT_FALSE(stubborn.has_object());
}

TEST(S3, ARefusalIsBelievedOnlyIfTheObjectIsThere) {
  Bucket there({}, true);
  EXPECT_FALSE(there.client().put("manifest.json", "x", true));
  EXPECT_EQ(there.asked, (std::vector<std::string>{"PUT if absent", "HEAD"}));
  Bucket empty({412});
  testing::expect_error(ErrorKind::kNetwork, {"manifest.json", "412", "does not exist"},
                        [&] { empty.client().put("manifest.json", "x", true); });
}

TEST(S3, AStoreWithoutConditionalWritesIsAskedFirst) {
  Bucket bucket({501, 501});
  EXPECT_TRUE(bucket.client().put("manifest.json", "x", true));
  EXPECT_TRUE(bucket.has_object());
  EXPECT_EQ(bucket.asked, (std::vector<std::string>{"PUT if absent", "HEAD", "PUT"}));
  EXPECT_FALSE(bucket.client().put("manifest.json", "x", true));
}

TEST(S3, AnAnswerThatStaysIsNotWorthAnotherTry) {
  Bucket elsewhere({301});
  testing::expect_error(ErrorKind::kConfig, {"301", "the bucket is at https://bucket.s3.eu-west-9", "AWS_REGION"},
                        [&] { elsewhere.client().put("manifest.json", "x", true); });
  Bucket bad({400});
  testing::expect_error(ErrorKind::kConfig, {"400"}, [&] { bad.client().put("manifest.json", "x", true); });
}

}  // namespace
}  // namespace specdec::net
