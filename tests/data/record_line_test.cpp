#include "data/shards/record_line.h"

#include "tests/data/toy.h"

namespace specdec::data {
namespace {

// Makes the line by building a JSON tree, which write_record_line avoids.
std::string by_tree(const TrafficRecord& record, const RecordOrigin& origin) {
  Json line = to_json(record);
  line["source"] = {{"format", origin.format}, {"file", origin.file}, {"line", origin.line}};
  if (!origin.tenant.empty()) line["tenant"] = origin.tenant;
  if (origin.redactions && !origin.redactions->empty()) line["redactions"] = *origin.redactions;
  return canonical_json(line);
}

TEST(RecordLine, IsWhatTheTreeGives) {
  std::string hard = "plain \"quoted\" back\\slash é€🙂 \x7f";
  for (char c = 1; c < 0x20; ++c) hard += c;
  hard += std::string("\0nul", 4);
  const std::map<std::string, int64_t> redactions = {{"email", 2}, {"ip", 1}}, none;
  TrafficRecord chat, pair, text;
  for (TrafficRecord* r : {&chat, &pair, &text}) {
    r->id = "id" + hard;
    r->conversation = hard;
    r->time = 1767225600;
    r->domain = "d\"";
    r->writer = "w";
  }
  chat.messages = {{"user", hard}, {"assistant", ""}};
  chat.messages.push_back({"assistant", "", "[{\"b\":1,\"a\":2}]"});
  chat.messages.push_back({"tool", hard, "", "id\n", "n\""});
  chat.tools = "[{\"z\":1}]";
  chat.template_kwargs = "{\"k\":\"\\n\"}";
  chat.messages[1].unlearnt = true;
  chat.messages[1].reasoning_content = hard;
  chat.finish_reason = "length";
  chat.sampling = SamplingOptions{0.7, 40, 0.95, 0.05};
  pair.response = hard;
  TrafficRecord with_ids = pair;
  with_ids.prompt_token_ids = {1, 0, 2147483647};
  with_ids.token_ids = {7};
  TrafficRecord answered = chat;
  answered.messages.push_back({"assistant", "a"});
  answered.token_ids = {7, 0};
  text.text = hard;
  std::string line = "left over";
  for (const TrafficRecord& r : {chat, answered, pair, with_ids, text})
    for (const RecordOrigin& origin : {RecordOrigin{"chat", "a b.jsonl", 7, "tenant-x", &redactions},
                                       RecordOrigin{"plain", "é", 0, "", &none}, RecordOrigin{}}) {
      write_record_line(r, origin, line);
      EXPECT_EQ(line, by_tree(r, origin));
    }
}

}  // namespace
}  // namespace specdec::data
