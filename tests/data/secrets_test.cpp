// Tests redaction on secrets that it once missed, grouped by kind, and on texts that it must not change.
#include "base/philox.h"
#include "data/redact/normalised_text.h"
#include "data/redact/redact.h"
#include "data/redact/token_surprise.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

std::string redacted(const std::string& text) {
  RedactionCounts counts;
  return redact(text, counts);
}

const std::string kAws = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const std::string kAzure = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const std::string kBody =
    "MIIEpAIBAAKCAQEA0Z3VS5JJcds3xfn/"
    "ygWyF8PbnGy0AHB7MhgwMbRvI0MBZhpJ\nqIhv2eYkyzQ9c4vY2cVYz1OYoRlm1kvJpDfyY8mgyTfRtfkJmXzOaYvHqqjyY0vG\n";

TEST(Secrets, KeysWithoutAPrefix) {
  EXPECT_EQ(redacted("aws_secret_access_key = " + kAws), "aws_secret_access_key = [KEY]");
  EXPECT_EQ(redacted("The pair is " + kAws + ", keep it."), "The pair is [KEY], keep it.");
  EXPECT_EQ(redacted("AccountName=devstore;AccountKey=" + kAzure + ";Suffix=core"),
            "AccountName=devstore;AccountKey=[KEY];Suffix=core");
  EXPECT_EQ(redacted("Ocp-Apim-Subscription-Key: 3f2a9c81d4e54b6f8a7e0d1c2b3a4f5e"),
            "Ocp-Apim-Subscription-Key: [KEY]");
  EXPECT_EQ(redacted("3f2a9c81d4e54b6f8a7e0d1c2b3a4f5e"), "[KEY]");
  EXPECT_EQ(redacted("client_secret=abc8Q~x1Y2z3A4b5C6d7E8f9G0h1I2j3K4l5M6n7"), "client_secret=[KEY]");
  EXPECT_EQ(redacted("-H 'Authorization: Bearer q7Hn2kPz0vXw9LrT4sYbE6mJ'"), "-H 'Authorization: Bearer [KEY]'");
  EXPECT_EQ(redacted("Authorization: Basic dXNlcjpmaXJzdC1rZXktMTIz"), "Authorization: Basic [KEY]");
  EXPECT_EQ(redacted("bot 110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsawX ok"), "bot [KEY] ok");
  EXPECT_EQ(redacted("see https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX."),
            "see [KEY].");
  EXPECT_EQ(redacted("postgres://app:s3cretPass!@db.internal:5432/x"), "postgres://app:[KEY]@db.internal:5432/x");
  EXPECT_EQ(redacted("session key 550e8400-e29b-41d4-a716-446655440000"), "session key [KEY]");
}

TEST(Secrets, PrivateKeysThatAreCut) {
  const std::string begin = "-----BEGIN RSA PRIVATE KEY-----\n", end = "-----END RSA PRIVATE KEY-----";
  EXPECT_EQ(redacted("a " + begin + kBody + end + " b"), "a [KEY] b");
  EXPECT_EQ(redacted("a " + begin + kBody + "shortLas=\n\nRegards"), "a [KEY]\n\nRegards");
  EXPECT_EQ(redacted("a " + begin + kBody.substr(0, 100)), "a [KEY]");
  EXPECT_EQ(redacted("a " + begin + kBody + "and then it ended"), "a [KEY]\nand then it ended");
  EXPECT_EQ(redacted(kBody + "shortLas=\n" + end + " b"), "[KEY] b");
  EXPECT_EQ(redacted(begin + "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0011\n\n" + kBody), "[KEY]\n");
  std::string escaped = begin + kBody;
  for (size_t at = 0; (at = escaped.find('\n', at)) != escaped.npos; ++at) escaped.replace(at, 1, "\\n");
  EXPECT_EQ(redacted("{\"private_key\": \"" + escaped + "\"}"), "{\"private_key\": \"[KEY]\\n\"}");
  EXPECT_EQ(redacted("A key begins with -----BEGIN PRIVATE KEY----- and a line."),
            "A key begins with -----BEGIN PRIVATE KEY----- and a line.");
}

TEST(Secrets, NumbersInOtherSpellings) {
  EXPECT_EQ(redacted("4111.1111.1111.1111, 4111 - 1111 - 1111 - 1111"), "[CARD], [CARD]");
  EXPECT_EQ(redacted("4111\u00A01111\u00A01111\u00A01111; 4111\u20111111\u20111111\u20111111"), "[CARD]; [CARD]");
  EXPECT_EQ(
      redacted("\uFF14\uFF11\uFF11\uFF11 \uFF11\uFF11\uFF11\uFF11 \uFF11\uFF11\uFF11\uFF11 \uFF11\uFF11\uFF11\uFF11。"),
      "[CARD]。");
  EXPECT_EQ(redacted("٤١١١ ١١١١ ١١١١ ١١١١"), "[CARD]");
  EXPECT_EQ(redacted("de89370400440532013000 and gb29 nwbk 6016 1331 9268 19."), "[IBAN] and [IBAN].");
  EXPECT_EQ(redacted("Tel. (030) 1234 5678, (030)12345678 or 0044 20 7946 0958"), "Tel. [PHONE], [PHONE] or [PHONE]");
  EXPECT_EQ(redacted("SSN 078-05-1120, 219 09 9999"), "SSN [SSN], [SSN]");
  EXPECT_EQ(redacted("to=jane%40example.com&x=1, j%2540example.com, jane\u200B@exa\u00ADmple.com"),
            "to=[EMAIL]&x=1, [EMAIL], [EMAIL]");
  EXPECT_EQ(redacted("10.1.2.3%3A8000"), "[IP]%3A8000");
}

TEST(Secrets, WhatIsNoSecretStaysAsItWasWritten) {
  for (const std::string text :
       {"commit 3d36a85f0c1b2a4958e7d6c5b4a392817f6e5d4c",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "550e8400-e29b-41d4-a716-446655440000",
        "integrity=\"sha384-oqVuAfXRKap7fdgcCY5uykM6+R9GqQ8K/uxy9rx7HNQlGYl1kPzQho1wx4JnI5pM\"",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
        "std::numeric_limits<int>::max()",
        "get_current_user_authentication_token_from_request",
        "AbstractSingletonProxyFactoryBean",
        "/usr/local/lib/python3.11/site-packages/torch/nn",
        "https://www.example.com/articles/2026/11/how-to-write-a-test-that-fails",
        "ACGTACGTTAGCACGTACGGTTAGCACGT",
        "1+2+3+4+5+6+7+8+9+10+11+12+13",
        "Donaudampfschifffahrtsgesellschaft",
        "a keyboard with tokenizer.encode(text)",
        "000-12-3456 and 666-12-3456 and 900-12-3456",
        "123-45-67890",
        "no12 of the words that follow are here",
        "100%25 of 5%20of it – “quoted”",
        "一百\u3000二百",
        "x\u200By",
        "XXXXXXXXXXXXXXXXXXXXXXXX",
        "1234.5678.9012.3456",
        "deadbeefdeadbeefdeadbeefdeadbeef",
        "6069.397933300514",
        "400.00000000000006",
        "key = 0xBF58476D1CE4E5B9ull",
        "secret AWS4-HMAC-SHA256 of EVP_PKEY_ED25519",
        "aAbBcCdDeEfFgGhHiIjJkKlLmMnNoOpPqQrRsStTuUvVwWxXyYzZ"})
    EXPECT_EQ(redacted(text), text);
}

TEST(Secrets, RandomTokensAreFoundWithAndWithoutALabel) {
  PhiloxStream random(5, 0);
  const auto some = [&](std::string_view set, size_t n) {
    std::string s;
    while (s.size() < n) s += set[random.below(set.size())];
    return s;
  };
  const std::string alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  const std::tuple<std::string, size_t, double> kinds[] = {{alnum, 20, .985},
                                                           {alnum + "+/", 40, .995},
                                                           {alnum + "-_", 43, .995},
                                                           {"0123456789abcdef", 32, .98},
                                                           {"abcdefghijklmnopqrstuvwxyz0123456789", 24, .99},
                                                           {"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 32, .99}};
  for (const auto& [set, length, share] : kinds) {
    int found = 0, labelled = 0;
    for (int i = 0; i < 1000; ++i) {
      const std::string token = some(set, length);
      found += redacted("it is " + token + " now") == "it is [KEY] now";
      labelled += redacted("api_key: \"" + token + "\"") == "api_key: \"[KEY]\"";
    }
    EXPECT_GE(found, 1000 * share) << set << ' ' << length;
    EXPECT_GE(labelled, 1000 * share) << set << ' ' << length;
  }
}

TEST(Secrets, SurpriseTellsRandomFromNames) {
  EXPECT_GT(surprise_bits("xKd93jfLs02kdjJ3ld0sKqmZ"), 50);
  for (const char* name : {"getElementByIdOrThrowIfMissing", "specdec-engine/kernels/cpu", "the_quick_brown_fox_jumps"})
    EXPECT_LT(surprise_bits(name), 25) << name;
  EXPECT_EQ(surprise_bits(""), 0);
  EXPECT_DOUBLE_EQ(character_entropy("abab"), 1);
}

// Redaction searches normalised text and maps each position back to the original, so the text around a redacted part
// keeps its bytes.
TEST(Normalise, MapsBackToTheOriginal) {
  std::string around;
  while (around.size() < 700) around += "größe – “naïve” 東京\u3000 100%20x ";
  for (size_t at = 0; at < around.size(); ++at) {
    if ((static_cast<unsigned char>(around[at]) & 0xC0) == 0x80 ||
        around.substr(at - std::min<size_t>(at, 2), 3).find('%') != around.npos)
      continue;
    std::string text = around, expected = around;
    text.insert(at, " jane%40\uFF45xample.com ");
    expected.insert(at, " [EMAIL] ");
    ASSERT_EQ(redacted(text), expected) << at;
  }
}

TEST(Normalise, FoldsWhatItNamesAndNothingElse) {
  const auto made = normalise("a\u00A0b\uFF21\u200Bc%41%2541%4");
  ASSERT_TRUE(made);
  EXPECT_EQ(made->text, "a bAcAA%4");
  EXPECT_EQ(made->origin, (std::vector<uint32_t>{0, 1, 3, 4, 10, 11, 14, 19, 20, 21}));
  EXPECT_FALSE(normalise("größe “q” 100% %zz %C3%A4"));
  EXPECT_FALSE(normalise(""));
}

}  // namespace
}  // namespace specdec::data
