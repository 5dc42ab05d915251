#include "data/redact/redact.h"

#include "base/philox.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

const IdKey kKey("salt");

std::string redacted(const std::string& text) {
  RedactionCounts counts;
  return redact(text, counts);
}

// Generates valid examples of each kind from their definitions, not from the patterns under test.
struct Source {
  PhiloxStream random{11, 0};
  char of(std::string_view set) { return set[random.below(set.size())]; }
  std::string many(std::string_view set, size_t n) {
    std::string s;
    while (s.size() < n) s += of(set);
    return s;
  }
  const std::string_view digits = "0123456789", lower = "abcdefghijklmnopqrstuvwxyz",
                         upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", hex = "0123456789abcdef",
                         alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

  std::string email() {
    return many(lower, 1 + random.below(8)) + std::string(1, of("._-")) + many(lower, 3) + "@" +
           many(lower, 2 + random.below(8)) + of(".-") + many(lower, 3) + "." + many(lower, 2 + random.below(3));
  }
  std::string card() {
    std::string d = of("456") == '5' ? "5" + std::string(1, of("12345")) : std::string(1, of("46")) + many(digits, 1);
    d += many(digits, 13);
    int sum = 0;
    for (size_t i = 0; i < 15; ++i) {
      int v = d[14 - i] - '0';
      if (i % 2 == 0) v = v > 4 ? 2 * v - 9 : 2 * v;
      sum += v;
    }
    d += static_cast<char>('0' + (10 - sum % 10) % 10);
    const char separator = of("  -x");
    if (separator == 'x') return d;
    return d.substr(0, 4) + separator + d.substr(4, 4) + separator + d.substr(8, 4) + separator + d.substr(12);
  }
  std::string iban() {
    const std::string body = many(digits, 18);
    const std::string check_input = body + "131400";  // the IBAN check: DE becomes 13 14, then 00
    int rest = 0;
    for (const char c : check_input) rest = (rest * 10 + (c - '0')) % 97;
    const int check = 98 - rest;
    std::string iban = "DE" + std::to_string(check / 10) + std::to_string(check % 10) + body;
    if (of("ab") == 'a') return iban;
    std::string grouped;
    for (size_t i = 0; i < iban.size(); ++i) grouped += (i && i % 4 == 0 ? " " : "") + std::string(1, iban[i]);
    return grouped;
  }
  std::string key() {
    switch (random.below(7)) {
      case 0:
        return "sk-" + many(alnum, 48);
      case 1:
        return "AKIA" + many("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16);
      case 2:
        return "ghp_" + many(alnum, 36);
      case 3:
        return "AIza" + many(alnum, 35);
      case 4:
        return "hf_" + many(alnum, 34);
      case 5:
        return "xoxb-" + many(digits, 12) + "-" + many(alnum, 24);
      default:
        return "-----BEGIN RSA PRIVATE KEY-----\n" + many(alnum, 64) + "\n" + many(alnum, 40) +
               "\n-----END RSA PRIVATE KEY-----";
    }
  }
  std::string jwt() { return "eyJ" + many(alnum, 20) + ".eyJ" + many(alnum, 60) + "." + many(alnum, 43); }
  std::string octet() { return std::to_string(random.below(256)); }
  std::string ip() {
    if (of("46") == '4') return "10." + octet() + "." + octet() + "." + octet();
    std::string s = "2001";
    for (int i = 0; i < 7; ++i) s += ":" + many(hex, 1 + random.below(4));
    return of("ab") == 'a' ? s : "fe80::" + many(hex, 3) + "1:" + many(hex, 4);
  }
  std::string phone() {
    switch (random.below(5)) {
      case 0:
        return "+49 " + std::string(1, of("123456789")) + many(digits, 2) + " " + many(digits, 7);
      case 1:
        return "(" + std::string(1, of("23456789")) + many(digits, 2) + ") " + many(digits, 3) + "-" + many(digits, 4);
      case 2:
        return std::string(1, of("23456789")) + many(digits, 2) + "-" + many(digits, 3) + "-" + many(digits, 4);
      case 3:
        return "0" + std::string(1, of("123456789")) + many(digits, 2) + "-" + many(digits, 7);
      default:
        return "+1" + std::string(1, of("23456789")) + many(digits, 9);
    }
  }
};

TEST(Redact, RecallOnGeneratedExamples) {
  Source source;
  const std::vector<std::tuple<std::string, std::string, std::string (Source::*)()>> kinds = {
      {"email", "[EMAIL]", &Source::email}, {"card", "[CARD]", &Source::card}, {"iban", "[IBAN]", &Source::iban},
      {"key", "[KEY]", &Source::key},       {"jwt", "[JWT]", &Source::jwt},    {"ip", "[IP]", &Source::ip},
      {"phone", "[PHONE]", &Source::phone}};
  const std::vector<std::pair<std::string, std::string>> frames = {
      {"", ""}, {"Write to ", " please."}, {"(", ")"}, {"x: \"", "\", y"}, {"é: ", "\nnext line"}, {"<b>", "</b>"}};
  for (const auto& [name, tag, make] : kinds) {
    int found = 0, exact = 0;
    constexpr int kExamples = 400;
    for (int i = 0; i < kExamples; ++i) {
      const std::string secret = (source.*make)();
      const auto& [before, after] = frames[static_cast<size_t>(i) % frames.size()];
      RedactionCounts counts;
      const std::string out = redact(before + secret + after, counts);
      found += out.find(secret) == std::string::npos;
      exact += out == before + tag + after && counts == RedactionCounts{{name, 1}};
    }
    EXPECT_GE(found, kExamples * 99 / 100) << name;
    // `exact` counts the examples that were replaced by the right tag, with unchanged text around it.
    EXPECT_GE(exact, kExamples * 98 / 100) << name;
  }
}

TEST(Redact, PrecisionOnHardNegatives) {
  for (const std::string text : {"2026-11-21 12:30:45.123",
                                 "2026-11-21T12:00:00Z",
                                 "12:30:45",
                                 "3.14159265358979",
                                 "0.4111111111111111",
                                 "version 10.2.3",
                                 "v1.2.3.4",
                                 "1,234,567,890",
                                 "4111 1111 1111 1112",
                                 "1767225600123",
                                 "DE89 3704 0044 0532 0130 01",
                                 "DE8937040044",
                                 "std::vector<int>",
                                 "ab::cd",
                                 "a::b::c",
                                 "for (int i = 0; i < 100000000; ++i)",
                                 "f(x) = 12345678 + 87654321",
                                 "#ff00aa",
                                 "sk-short",
                                 "@app.route",
                                 "a @ b",
                                 "page 100-200",
                                 "1000-2000-3000",
                                 "eyJhbGciOi",
                                 "127.0.0.1:8000",
                                 "0.0.0.0",
                                 "::1",
                                 "256.300.1.1",
                                 "1.2.3",
                                 "1.2.3.4.5",
                                 "550e8400-e29b-41d4-a716-446655440000",
                                 "ISBN 978-3-16-148410-0",
                                 "10 / 2 = 5",
                                 "$100 200 300",
                                 "007",
                                 "from 01/2024 to 12/2025",
                                 "0x7fff5fbff8c0",
                                 "9007199254740993",
                                 "a_4111111111111111_b",
                                 "5-1-12-9-20-25 9-19 1-14 9",
                                 "00:11:22:33:44:55"})
    EXPECT_EQ(redacted(text), text);
}

TEST(Redact, CodeAndStoriesStayAsTheyAre) {
  const fs::path shared = shared_directory();
  if (shared.empty()) GTEST_SKIP() << "no shared data (set SPECDEC_SHARED)";
  const std::string stories = slurp(shared / "data/tinystories-text/tinystories_sample_2MB.txt");
  RedactionCounts counts;
  EXPECT_EQ(redact(stories, counts).size(), stories.size());
  EXPECT_TRUE(counts.empty());
}

// Redaction searches only windows of a long text and the neighbourhood of digits. It must find a secret at any
// position.
TEST(Redact, FindsAtEveryPlaceOfALongText) {
  std::string words;
  while (words.size() < 900) words += "some words of no use; ";
  for (const auto& [secret, tag] : {std::pair<std::string, std::string>{"AKIAABCDEFGHIJKLMNOP", "[KEY]"},
                                    {"DE89 3704 0044 0532 0130 00", "[IBAN]"},
                                    {"2001:db8:0:1::42", "[IP]"},
                                    {"dead:beef:cafe:babe:dead:beef:cafe:babe", "[IP]"},
                                    {"GB29 NWBK 6016 1331 9268 19", "[IBAN]"},
                                    {"+49 171 1234567", "[PHONE]"},
                                    {"a.b@c.example", "[EMAIL]"}})
    for (size_t at = 0; at < 560; at += 7) {
      std::string text = words + " at 9:00", expected = text;
      text.insert(at, " " + secret + " ");
      expected.insert(at, " " + tag + " ");
      ASSERT_EQ(redacted(text), expected) << secret << " at " << at;
    }
}

TEST(Redact, SeveralFindsAndOverlaps) {
  EXPECT_EQ(redacted("a@b.de, c@d.org; 4111 1111 1111 1111 12/29"), "[EMAIL], [EMAIL]; [CARD] 12/29");
  EXPECT_EQ(redacted("DE89 3704 0044 0532 0130 00 IS MINE"), "[IBAN] IS MINE");
  EXPECT_EQ(redacted("phone=+447400122830 or 01 234564092"), "phone=[PHONE] or [PHONE]");
  EXPECT_EQ(redacted("3782 822463 10005, 378282246310005"), "[CARD], [CARD]");
  EXPECT_EQ(redacted("müller.jörg@firma-süd.de"), "[EMAIL]");
  EXPECT_EQ(redacted(""), "");
}

TEST(Redact, LinearOnHostileText) {
  // Each of these texts would take minutes if the search started again from the beginning of a failed candidate.
  for (const std::string& unit : {std::string("1"), std::string("4 "), std::string(":"), std::string("a@"),
                                  std::string("DE89"), std::string("1."), std::string("+1"),
                                  std::string("eyJaaaaaaaa."), std::string("-----BEGIN PRIVATE KEY-----")}) {
    std::string text;
    // The long units repeat only the search for line ends, which is fast, so their texts are longer.
    const size_t size = unit.size() > 20 ? 8'000'000 : 300'000;
    while (text.size() < size) text += unit;
    RedactionCounts counts;
    EXPECT_LE(redact(text, counts).size(), 2 * text.size());
  }
}

TEST(Redact, RecordFieldsAndNames) {
  TrafficRecord record;
  record.id = "ticket-7";
  record.conversation = "jane@example.com";
  record.messages = {{"user", "I am jane@example.com"}, {"assistant", "Hello +49 171 1234567"}};
  RedactionCounts counts;
  redact_record(record, kKey, counts);
  EXPECT_EQ(record.messages[0].content, "I am [EMAIL]");
  EXPECT_EQ(record.messages[1].content, "Hello [PHONE]");
  EXPECT_EQ(record.id, "ticket-7");
  EXPECT_EQ(record.conversation.find("jane"), std::string::npos);
  EXPECT_EQ(counts, (RedactionCounts{{"email", 1}, {"phone", 1}}));
  TrafficRecord second;
  second.id = "x";
  second.conversation = "jane@example.com";
  redact_record(second, kKey, counts);
  EXPECT_EQ(second.conversation, record.conversation);  // rows of one conversation keep the same id
}

// Token ids decode to the text before redaction, so they must be dropped.
TEST(RedactRecord, DropsTokenIdsOfTextsWithFinds) {
  for (const char* prompt : {"I am jane", "I am jane@example.com"})
    for (const char* response : {"Hello", "Hello +49 171 1234567"}) {
      TrafficRecord r;
      r.prompt = prompt;
      r.response = response;
      r.prompt_token_ids = {1, 2};
      r.token_ids = {3};
      RedactionCounts counts;
      redact_record(r, kKey, counts);
      EXPECT_EQ(r.prompt_token_ids.empty(), !counts.empty());
      EXPECT_EQ(r.token_ids.empty(), !counts.empty());
      TrafficRecord chat;
      chat.messages = {{"user", prompt}, {"assistant", response}};
      chat.token_ids = {3};
      redact_record(chat, kKey, counts);
      EXPECT_EQ(chat.token_ids.empty(), !counts.empty());
    }
}

TEST(RedactRecord, ReachesIntoToolCallsAndTools) {
  TrafficRecord r;
  r.messages = {{"user", "u"},
                {"assistant", "",
                 R"([{"function":{"name":"mail","arguments":{"to":"a\njane@example.com","at":["10.1.2.3"],"n":1}}}])"}};
  r.tools = R"([{"function":{"name":"f","description":"ask jane@example.com"}}])";
  r.template_kwargs = R"({"persona":"jane@example.com","thinking":false})";
  RedactionCounts counts;
  redact_record(r, kKey, counts);
  EXPECT_EQ(r.template_kwargs, R"({"persona":"[EMAIL]","thinking":false})");
  EXPECT_EQ(r.messages[1].tool_calls,
            R"([{"function":{"name":"mail","arguments":{"to":"a\n[EMAIL]","at":["[IP]"],"n":1}}}])");
  EXPECT_EQ(r.tools, R"([{"function":{"name":"f","description":"ask [EMAIL]"}}])");
  EXPECT_EQ(counts, (RedactionCounts{{"email", 3}, {"ip", 1}}));
}

TEST(RedactRecord, WhatToolCallsHoldBesideStrings) {
  TrafficRecord r;
  const std::string id = "call_jane@example.com";
  r.messages = {{"user", "u"},
                {"assistant", "",
                 R"([{"id":")" + id +
                     R"(","function":{"name":"pay","arguments":{"jane@example.com":{"c@d.org":4111111111111111},)"
                     R"("a@b.de":2,"n":-1.5}}},{"id":"c2","function":{"name":"f","arguments":{"at":12}}}])"},
                {"tool", "r", "", id, "ask jane@example.com"}};
  RedactionCounts counts;
  redact_record(r, kKey, counts);
  const std::string same = r.messages[2].tool_call_id;
  EXPECT_TRUE(same.starts_with("redacted-")) << same;  // a call and its answer keep the same id
  EXPECT_EQ(r.messages[1].tool_calls,
            R"([{"id":")" + same +
                R"(","function":{"name":"pay","arguments":{"[EMAIL]":{"[EMAIL]":"[CARD]"},"[EMAIL]_2":2,"n":-1.5}}},)"
                R"({"id":"c2","function":{"name":"f","arguments":{"at":12}}}])");
  EXPECT_EQ(r.messages[2].name, "ask [EMAIL]");
  EXPECT_EQ(counts, (RedactionCounts{{"email", 4}, {"card", 1}}));
  // JSON keys outside of a call's arguments belong to the program and are not redacted.
  TrafficRecord tools;
  tools.messages = {{"user", "u"}, {"assistant", "a"}};
  tools.tools =
      R"([{"function":{"name":"f","parameters":{"properties":{"jane@example.com":{"default":4111111111111111}}}}}])";
  redact_record(tools, kKey, counts);
  EXPECT_EQ(tools.tools,
            R"([{"function":{"name":"f","parameters":{"properties":{"jane@example.com":{"default":"[CARD]"}}}}}])");
}

}  // namespace
}  // namespace specdec::data
