// Tests that the reader finds the ends of requests, however their bytes are divided into pieces.
#include "deploy/serve/http/http_request_reader.h"

#include <gtest/gtest.h>

#include <cstring>

namespace specdec::deploy {
namespace {

// Feeds `bytes` to a reader in pieces that end at `cuts`. Returns paths and bodies of the requests, followed by the
// status of the fault if there is one.
std::string read_in_pieces(const std::string& bytes, std::vector<size_t> cuts) {
  using State = RequestReader::State;
  static const ServeLimits limits;
  RequestReader reader(limits);
  State state = State::kHead;
  std::string out;
  size_t at = 0;
  cuts.push_back(bytes.size());
  for (const size_t cut : cuts) {
    std::memcpy(reader.prepare().data(), bytes.data() + at, cut - at);
    reader.commit(cut - at);
    at = cut;
    do {
      if (state == State::kHead) state = reader.read_head();
      if (state == State::kBody) state = reader.read_body();
      if (state == State::kFaulty) return out + std::to_string(reader.fault().status);
      if (state != State::kWhole) break;
      out += reader.head().path + "=" + reader.take_body() + " ";
      reader.next();
      state = State::kHead;
    } while (!reader.empty());
  }
  return out;
}

// A slow or hostile client may send byte by byte. Beast's parser fails an assertion when the parts of a last chunk
// arrive separately, which the reader must prevent.
TEST(RequestReader, RequestsMayBeCutAnywhere) {
  const std::string bytes =
      "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3;e=v\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"
      "POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
      "POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
      "GET /d HTTP/1.0\r\n\r\n";
  const std::string expected = "/a=abc0123456789 /b= /c=hi /d= ";
  EXPECT_EQ(read_in_pieces(bytes, {}), expected);
  std::vector<size_t> everywhere;
  for (size_t i = 1; i < bytes.size(); ++i) {
    everywhere.push_back(i);
    for (size_t j = i; j < std::min(i + 8, bytes.size()); ++j)
      ASSERT_EQ(read_in_pieces(bytes, {i, j}), expected) << i << " " << j;
  }
  EXPECT_EQ(read_in_pieces(bytes, everywhere), expected);
}

TEST(RequestReader, ZerosBeforeALengthMeanNothing) {
  EXPECT_EQ(read_in_pieces("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0000000000000000000000000002\r\n\r\nhi"
                           "POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                           "00000000000000000002\r\nho\r\n00000000000000000000\r\n\r\n",
                           {}),
            "/a=hi /b=ho ");
}

TEST(RequestReader, OneEmptyLineBeforeARequestIsIgnored) {
  ServeLimits limits;
  const std::string request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  for (const auto& [lines, whole] : {std::pair(0, true), {1, true}, {2, false}}) {
    RequestReader reader(limits);
    std::string text;
    for (int i = 0; i < lines; ++i) text += "\r\n";
    RequestReader::State state = RequestReader::State::kHead;
    for (const char c : text + request) {  // byte by byte
      if (state != RequestReader::State::kHead) break;
      *static_cast<char*>(reader.prepare().data()) = c;
      reader.commit(1);
      state = reader.read_head();
    }
    EXPECT_EQ(state, whole ? RequestReader::State::kWhole : RequestReader::State::kFaulty) << lines;
  }
}

TEST(RequestReader, PathsAreDecodedAndOneKeyIsTaken) {
  ServeLimits limits;
  const auto read = [&limits](const std::string& text, RequestReader& reader) {
    const auto buffer = reader.prepare();
    std::copy(text.begin(), text.end(), static_cast<char*>(buffer.data()));
    reader.commit(text.size());
    return reader.read_head();
  };
  const auto path = [&](const std::string& target) -> std::string {
    RequestReader reader(limits);
    const bool whole = read("GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n", reader) == RequestReader::State::kWhole;
    return whole ? reader.head().path + " " + reader.head().query : "refused";
  };
  EXPECT_EQ(path("/v1/models/org%2Fname"), "/v1/models/org/name ");
  EXPECT_EQ(path("/v1/models/a%2fb%25?floor=%31"), "/v1/models/a/b% floor=%31") << "the query's reader decodes it";
  for (const char* bad : {"/%", "/%2", "/%2?x", "/%zz", "/%+1", "/%00", "/a%0a", "/%7f", "%2Fhealth", "health"})
    EXPECT_EQ(path(bad), "refused") << bad;
  for (const auto& [keys, state] :
       {std::pair("", RequestReader::State::kWhole),
        {"Authorization: Bearer a\r\n", RequestReader::State::kWhole},
        {"Authorization: Bearer a\r\nauthorization: Bearer a\r\n", RequestReader::State::kFaulty}}) {
    RequestReader reader(limits);
    EXPECT_EQ(read("GET / HTTP/1.1\r\nHost: a\r\n" + std::string(keys) + "\r\n", reader), state) << keys;
  }
}

TEST(RequestReader, NothingBehindAFaultIsARequest) {
  const std::string next = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
  for (const auto& [head, status] : {std::pair{"Transfer-Encoding: chunked, identity", "400"},
                                     {"Transfer-Encoding: gzip, chunked", "501"},
                                     {"Content-Length: 0x0", "400"},
                                     {"Content-Length: 0\r\n folded: y", "400"},
                                     {"Content-Length: 0\r\nTransfer-Encoding: chunked", "400"}})
    EXPECT_EQ(read_in_pieces("POST /a HTTP/1.1\r\nHost: x\r\n" + std::string(head) + "\r\n\r\n" + next, {}), status)
        << head;
}

}  // namespace
}  // namespace specdec::deploy
