import com.alibaba.nacos.api.naming.NamingFactory;
import com.alibaba.nacos.api.naming.NamingService;
import com.alibaba.nacos.api.naming.pojo.Instance;
import com.alibaba.nacos.api.naming.pojo.ServiceInfo;
import com.alibaba.nacos.client.naming.cache.DiskCache;
import com.alibaba.nacos.client.naming.utils.CacheDirUtil;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/**
 * The official client as a writer and a reader of lists on disk, run by java_test.go with
 * JM.SNAPSHOT.PATH set: "write SERVER" registers services and waits until their files are there,
 * "read FILE" prints the instances of the services named in FILE (group@@name, one a line) as it has
 * them without any server.
 */
public final class Lists {

    private static final String GROUP = "DEFAULT_GROUP";

    private static final String[] ODD = {"a b", "star*", "tilde~", "100%", "%40", "plus+", "umlaut-\u00e4-\u4e2d-\ud83d\ude00", "x:y,z(1)",
        "a/b\\c", "Order_1.2-3"};

    public static void main(String[] args) throws Exception {
        Properties p = new Properties();
        p.put("serverAddr", args[0].equals("write") ? args[1] : "127.0.0.1:1");
        p.put("namingLoadCacheAtStart", "true");
        NamingService naming = NamingFactory.createNamingService(p);
        if (args[0].equals("write")) {
            write(naming);
        } else {
            Thread.sleep(1000); // the failover switch is read on another thread
            ObjectMapper json = new ObjectMapper();
            for (String line : Files.readAllLines(Path.of(args[1]), StandardCharsets.UTF_8)) {
                String[] id = line.split("@@", 2);
                List<Instance> hosts = naming.getAllInstances(id[1], id[0], List.of(), true);
                System.out.write((json.writeValueAsString(Map.of("service", line, "hosts", hosts)) + "\n")
                        .getBytes(StandardCharsets.UTF_8));
                System.out.flush();
            }
        }
        System.exit(0); // not every thread of it is a daemon
    }

    private static void write(NamingService naming) throws Exception {
        while (!naming.getServerStatus().equals("UP")) {
            Thread.sleep(50);
        }
        one(naming, "order", "team-a", "10.0.0.1", 8080, 1.0, Map.of());
        // Servers do not take all of these names; the file is written by the client all the same.
        for (String odd : ODD) {
            Instance i = instance("10.0.0.2", 9090, 2.5, Map.of("version", "1", "text", "\"q\" <&> \n \u00fc"));
            i.setClusterName("c");
            ServiceInfo info = new ServiceInfo(GROUP + "@@" + odd);
            info.setClusters("");
            info.setHosts(List.of(i));
            info.setCacheMillis(10000);
            info.setLastRefTime(1700000000000L);
            info.setReachProtectionThreshold(true);
            DiskCache.write(info, CacheDirUtil.getCacheDir());
        }
        one(naming, "beats", GROUP, "fd00::1", 65535, 0.0, Map.of("preserved.heart.beat.interval", "1000",
                "preserved.heart.beat.timeout", "3000", "preserved.ip.delete.timeout", "9000"));
        Instance a = instance("10.0.0.3", 1, 10000, Map.of());
        a.setClusterName("c-1");
        a.setEnabled(true);
        Instance b = instance("10.0.0.3", 2, 0.01, Map.of());
        b.setHealthy(false);
        naming.batchRegisterInstance("many", GROUP, List.of(a, b));
        naming.subscribe("many", GROUP, e -> { });
        Thread.sleep(3000); // pushes and their files
    }

    private static void one(NamingService naming, String service, String group, String ip, int port, double weight,
            Map<String, String> metadata) throws Exception {
        naming.registerInstance(service, group, instance(ip, port, weight, metadata));
        naming.subscribe(service, group, e -> { });
    }

    private static Instance instance(String ip, int port, double weight, Map<String, String> metadata) {
        Instance i = new Instance();
        i.setIp(ip);
        i.setPort(port);
        i.setWeight(weight);
        i.setMetadata(metadata);
        return i;
    }
}
