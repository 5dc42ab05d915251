#include "data/sources/record_reader.h"

#include <sys/stat.h>

#include "base/sha256.h"
#include "base/utf8.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

struct Seen {
  std::string text;
  int64_t number;
  bool too_long, unterminated;
  bool operator==(const Seen&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Seen& s) {
  return out << s.number << (s.too_long ? " too long" : "") << (s.unterminated ? " unterminated" : "") << " '" << s.text
             << "'";
}

std::vector<Seen> read_all(const fs::path& file, Container container, const std::string& separator = "",
                           size_t limit = 1 << 20) {
  ReaderOptions options;
  options.container = container;
  options.separator = separator;
  options.max_record_bytes = limit;
  RecordReader reader(file.string(), options);
  std::vector<Seen> all;
  for (RawRecord r; reader.next(r);) all.push_back({std::string(r.text), r.number, r.too_long, r.unterminated});
  EXPECT_EQ(reader.finish_sha256(), sha256_file(file));
  return all;
}

TEST(RecordReader, LinesWithBomCrLfBlanksAndATornEnd) {
  const Scratch s;
  const fs::path file = s.write("a.jsonl", "\xEF\xBB\xBF{\"a\":1}\r\n\r\n  \n{\"b\":2}\n{\"c\":");
  EXPECT_EQ(
      read_all(file, Container::kLines),
      (std::vector<Seen>{{"{\"a\":1}", 1, false, false}, {"{\"b\":2}", 4, false, false}, {"{\"c\":", 5, false, true}}));
}

TEST(RecordReader, EmptyFileHasNoRecords) {
  const Scratch s;
  for (const Container c : {Container::kLines, Container::kDocuments})
    EXPECT_TRUE(read_all(s.write("e", ""), c, "|").empty());
  EXPECT_TRUE(read_all(s.write("bom", "\xEF\xBB\xBF"), Container::kLines).empty());
}

TEST(RecordReader, LongLinesAreSkippedWithBoundedMemoryAndTheNextOneIsRead) {
  const Scratch s;
  // Records longer than the limit, longer than a block of 1 MiB, exactly at the limit, and one byte over it.
  const std::string huge(5'000'000, 'x'), at(100, 'y'), over(101, 'z');
  const fs::path file = s.write("long.jsonl", huge + "\n" + at + "\n" + over + "\nend\n" + huge);
  EXPECT_EQ(read_all(file, Container::kLines, "", 100), (std::vector<Seen>{{"", 1, true, false},
                                                                           {at, 2, false, false},
                                                                           {"", 3, true, false},
                                                                           {"end", 4, false, false},
                                                                           {"", 5, true, true}}));
}

TEST(RecordReader, DocumentsAreSplitAndStrippedAcrossBlockBorders) {
  const Scratch s;
  // Places the separator at every offset around the end of the first block.
  for (size_t before = 0; before <= 14; ++before) {
    const std::string first((1 << 20) - before, 'x');
    EXPECT_EQ(read_all(s.write("d.txt", first + "<|endoftext|>\n b \n<|endoftext|>\n"), Container::kDocuments,
                       "<|endoftext|>"),
              (std::vector<Seen>{{first, 1, false, false}, {"b", 2, false, false}}))
        << before;
  }
  EXPECT_EQ(read_all(s.write("one.txt", " a\n\nb \n"), Container::kDocuments, "<|endoftext|>"),
            (std::vector<Seen>{{"a\n\nb", 1, false, true}}));
  EXPECT_EQ(read_all(s.path() / "one.txt", Container::kDocuments, ""), (std::vector<Seen>{{"a\n\nb", 1, false, true}}));
}

TEST(RecordReader, ArrayElementsKeepBracketsInStrings) {
  const Scratch s;
  const fs::path file = s.write("a.json", " [ {\"a\": \"]},\\\"{\"}\n, {\"b\": [1, [2]]}, 7 , {} ]\n");
  EXPECT_EQ(read_all(file, Container::kValues), (std::vector<Seen>{{"{\"a\": \"]},\\\"{\"}", 1, false, false},
                                                                   {"{\"b\": [1, [2]]}", 2, false, false},
                                                                   {"7", 3, false, false},
                                                                   {"{}", 4, false, false}}));
  const std::string big = "{\"x\":\"" + std::string(3'000'000, 'q') + "\"}";
  EXPECT_EQ(read_all(s.write("big.json", "[" + big + ",{\"y\":1}]"), Container::kValues, "", 100),
            (std::vector<Seen>{{"", 1, true, false}, {"{\"y\":1}", 2, false, false}}));
  EXPECT_EQ(read_all(s.path() / "big.json", Container::kValues, "", 4 << 20).front().text, big);
  EXPECT_TRUE(read_all(s.write("none.json", "[]"), Container::kValues).empty());
  EXPECT_EQ(read_all(s.write("objects.json", "{\"a\":\n 1}\n{\"b\":[2]} {}"), Container::kValues),
            (std::vector<Seen>{
                {"{\"a\":\n 1}", 1, false, false}, {"{\"b\":[2]}", 2, false, false}, {"{}", 3, false, false}}));
  for (const char* broken : {"[{}", "[{}] x", "[\"a", "{} x", "{", "7"})
    EXPECT_THROW(read_all(s.write("b.json", broken), Container::kValues), Error) << broken;
}

TEST(RecordReader, RefusesWhatIsNoTextFile) {
  const Scratch s;
  const auto message = [](const fs::path& file) -> std::string {
    try {
      RecordReader reader(file.string(), {Container::kLines, true, "", 100});
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kData);
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(message(s.write("le", std::string("\xFF\xFE{\0", 4))).find("UTF-16"), std::string::npos);
  EXPECT_NE(message(s.write("be", std::string("\xFE\xFF\0{", 4))).find("UTF-16"), std::string::npos);
  EXPECT_NE(message(s.write("bomless", std::string("{\0\"\0", 4))).find("UTF-16"), std::string::npos);
  EXPECT_NE(message(s.write("gz", "\x1F\x8B\x09 text")).find("damaged gzip"), std::string::npos);
  EXPECT_NE(message(s.write("zst", "\x28\xB5\x2F\xFD" + std::string(40, '\xFF'))).find("damaged zstd"),
            std::string::npos);
  EXPECT_NE(message(s.write("pq", "PAR1....")).find("Parquet"), std::string::npos);
  ASSERT_EQ(mkfifo((s / "fifo").c_str(), 0600), 0);
  EXPECT_NE(message(s / "fifo").find("regular file"), std::string::npos);  // opening the FIFO does not hang
  EXPECT_NE(message(s.path()).find("directory"), std::string::npos);
  EXPECT_NE(message("/dev/zero").find("regular file"), std::string::npos);
  EXPECT_NE(message(s / "absent").find("absent"), std::string::npos);
}

TEST(GuessContainer, ByNameAndByTheFirstLines) {
  const Scratch s;
  const auto detect = [&](const char* name, const std::string& content) {
    return guess_container(name, content, 1 << 20);
  };
  EXPECT_EQ(detect("a.jsonl", "garbage"), Container::kLines);
  EXPECT_EQ(detect("a.log", "{\"a\":1}\n{\"b\"\nx\n{}"), Container::kLines);
  EXPECT_EQ(detect("a.json", "\n[\n  {\"a\": 1}]"), Container::kValues);
  EXPECT_EQ(detect("a.json", "{\n \"a\": 1\n}"), Container::kValues);
  EXPECT_EQ(detect("a.json.gz", "{\"a\": [\n{\"b\": 1}]}"), Container::kValues);
  EXPECT_EQ(detect("a.log", "{\"a\": \"cut off\n{\"a\":1}\n{\"a\":2}"), Container::kLines);
  EXPECT_EQ(detect("a.jsonl.zst", "{\n}"), Container::kLines);
  EXPECT_EQ(detect("-", "{\"a\":1}\n"), Container::kLines);
  EXPECT_EQ(detect("a.c", "{\n  int x;\n}"), Container::kDocuments);
  EXPECT_EQ(detect("a.txt", "Once upon a time.\n{not json}\nThe end."), Container::kDocuments);
  EXPECT_EQ(detect("a.md", "[a link](x)\ntext"), Container::kDocuments);
}

TEST(Utf8, FollowsTheUnicodeTable) {
  for (const char* good :
       {"", "plain ascii that is longer than eight", "é", "€", "🙂", "\xEF\xBF\xBF", "\xF4\x8F\xBF\xBF"})
    EXPECT_TRUE(is_valid_utf8(good)) << good;
  for (const char* bad : {"\x80", "abcdefgh\xC3", "\xC0\xAF", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80",
                          "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82"})
    EXPECT_FALSE(is_valid_utf8(bad));
  EXPECT_EQ(count_characters("aé€🙂"), 4);
}

}  // namespace
}  // namespace specdec::data
