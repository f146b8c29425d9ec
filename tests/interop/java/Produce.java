import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Produce BROKERS TOPIC: sends a record per key read from standard input; prints "key partition" each. */
public class Produce {
  public static void main(String[] args) throws Exception {
    Properties props = new Properties();
    props.put("bootstrap.servers", args[0]);
    props.put("key.serializer", StringSerializer.class.getName());
    props.put("value.serializer", StringSerializer.class.getName());
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(props);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in))) {
      for (String key; (key = in.readLine()) != null; ) {
        System.out.println(key + " " + producer.send(new ProducerRecord<>(args[1], key, "{}")).get().partition());
      }
    }
  }
}
