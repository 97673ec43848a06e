import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryNTimes;

/** Curator's mutex, told what to do by lines: each is answered by one line. */
public class CuratorProgram {
    public static void main(String[] args) throws Exception {
        CuratorFramework client =
            CuratorFrameworkFactory.newClient(args[0], 10_000, 10_000, new RetryNTimes(60, 250));
        client.start();
        InterProcessMutex mutex = new InterProcessMutex(client, args[1]);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ");
            System.out.println(answer(client, mutex, words[0], words.length > 1 ? words[1] : ""));
        }
        client.close();
    }

    static String answer(CuratorFramework client, InterProcessMutex mutex, String order, String of)
        throws Exception {
        switch (order) {
            case "session":
                client.blockUntilConnected();
                long id = client.getZookeeperClient().getZooKeeper().getSessionId();
                return "0x" + Long.toHexString(id);
            case "try":
                return mutex.acquire(500, TimeUnit.MILLISECONDS) ? "acquired" : "busy";
            case "acquire":
                mutex.acquire();
                return "acquired";
            case "release":
                mutex.release();
                return "released";
            case "count":
                return count(client, mutex, Integer.parseInt(of));
            default:
                return "no such order: " + order;
        }
    }

    /** Add so many ones to /count, each under the mutex, by a read and a write that nothing checks. */
    static String count(CuratorFramework client, InterProcessMutex mutex, int times)
        throws Exception {
        for (int i = 0; i < times; i++) {
            mutex.acquire();
            try {
                int before = Integer.parseInt(new String(client.getData().forPath("/count")));
                client.setData().forPath("/count", Integer.toString(before + 1).getBytes());
            } finally {
                mutex.release();
            }
        }
        return "counted";
    }
}
